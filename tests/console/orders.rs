//! Orders, from the click to the audit and the broker.

use anyhow::{Result, ensure};
use serde_json::json;
use testkit::{
    consume::Broker,
    ledger::{Draft, Ledger},
    load,
    relay::Relay,
};

use crate::{
    browser::{Browser, browse},
    stage::{PATIENCE, Stage},
};

const OPEN: &str = "SELECT COUNT(*) = 0 FROM outbox_jobs WHERE ended_at IS NULL";

/// Gives all pending messages up.
const BURY: &str = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, reason, error, owner) \
    SELECT lane, id, key_hash, bytes, 1, UTC_TIMESTAMP(6), 'unroutable', 'no queue', 'test' FROM outbox_pending; \
    DELETE FROM outbox_pending";

/// Lets all pending messages wait for an hour.
const PARK: &str = "INSERT INTO outbox_delayed (lane, id, key_hash, bytes, attempts, due_at, holds_key, reason, error) \
    SELECT lane, id, key_hash, bytes, 0, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, 1, 'parked', 'down' FROM outbox_pending; \
    DELETE FROM outbox_pending";

impl Stage {
    /// A stage with dead messages, and no relay yet.
    async fn with_dead(number: usize) -> Result<(Self, Vec<Draft>)> {
        let stage = Self::new(Broker::Kafka).await?;
        let drafts = stage.drafts(number);
        stage.commit(&drafts).await?;
        stage.database.execute(BURY).await?;
        Ok((stage, drafts))
    }

    /// Checks that Alice's order is in the audit once, and in the list of jobs if it is one.
    async fn recorded(&self, action: &str, reason: &str, messages: u32) -> Result<()> {
        let sql = format!(
            "SELECT COUNT(*) FROM outbox_audit a LEFT JOIN outbox_jobs j USING (job_id) WHERE a.action = '{action}' \
             AND a.actor = 'alice' AND a.reason = '{reason}' AND COALESCE(a.messages, 0) = {messages} \
             AND (j.job_id IS NOT NULL) = ({messages} > 0)"
        );
        let found = self.database.number(&sql).await?;
        ensure!(found == 1, "the audit has {action} {found} times");
        Ok(())
    }

    async fn orders(&self) -> Result<i64> {
        self.database.number("SELECT (SELECT COUNT(*) FROM outbox_jobs) + (SELECT COUNT(*) FROM outbox_audit)").await
    }
}

/// Follows a link to the plan of an order.
async fn follow(browser: &Browser<'_>, order: &str) -> Result<()> {
    browser.click(&format!("main a[href*='/order/{order}']")).await
}

/// Checks that the console shows the job that was ordered.
async fn ordered(browser: &Browser<'_>) -> Result<()> {
    let path = browser.path().await?;
    ensure!(path.contains("/jobs?ordered="), "the order leads to {path}: {}", browser.text("main").await?);
    ensure!(browser.count("main tbody tr").await? > 0, "no job is shown");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_message_whose_topic_was_made_is_retried_and_arrives() -> Result<()> {
    let mut stage = Stage::new(Broker::Kafka).await?;
    let name = format!("late-{}", stage.topic.name());
    let draft = Draft::new(&name, "late").unordered_key("k");
    let _relay = stage.relay()?;
    stage.commit(std::slice::from_ref(&draft)).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) FROM outbox_dead WHERE reason = 'unroutable'").await?;
    stage.topic.create_beside(&name).await?;
    let console = stage.console().await?;
    browse(&console, "alice", async |browser| {
        browser.go(&format!("/message/{}", draft.id)).await?;
        follow(browser, "dead/retry").await?;
        browser.fill("because", "the topic is there").await?;
        browser.press().await?;
        ordered(browser).await
    })
    .await?;
    stage.database.wait_for(PATIENCE, OPEN).await?;
    ensure!(stage.arrivals(&draft).await? == 1, "it is not at the broker");
    stage.recorded("retry", "the topic is there", 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_sink_that_was_down_is_published_now() -> Result<()> {
    let mut stage = Stage::new(Broker::RabbitMq).await?;
    let drafts = stage.drafts(1);
    stage.commit(&drafts).await?;
    stage.database.execute(PARK).await?;
    let _relay = stage.relay()?;
    let console = stage.console().await?;
    browse(&console, "alice", async |browser| {
        browser.go("/delayed").await?;
        follow(browser, "delayed/retry").await?;
        browser.fill("because", "the broker is up").await?;
        browser.press().await?;
        ordered(browser).await
    })
    .await?;
    stage.database.wait_for(PATIENCE, OPEN).await?;
    ensure!(stage.arrivals(&drafts[0]).await? == 1, "it is not at the broker");
    stage.recorded("hurry", "the broker is up", 1).await
}

/// Discards three messages: first with a wrong number, which changes nothing.
async fn discard(browser: &Browser<'_>, stage: &Stage) -> Result<()> {
    const PLAN: &str = "/order/dead/discard?all=true";
    for count in ["2", "33"] {
        browser.order(PLAN, "no longer needed", Some(count)).await?;
        ensure!(browser.count("[role=alert]").await? == 1, "{}", browser.text("main").await?);
        ensure!(stage.orders().await? == 0, "something was ordered with the number {count}");
    }
    let relay = stage.relay()?;
    browser.order(PLAN, "no longer needed", Some("3")).await?;
    ordered(browser).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_messages").await?;
    drop(relay);
    stage.recorded("discard", "no longer needed", 3).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discard_needs_the_number_of_messages() -> Result<()> {
    let (stage, _) = Stage::with_dead(3).await?;
    let console = stage.console().await?;
    browse(&console, "alice", async |browser| discard(browser, &stage).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_needs_no_script() -> Result<()> {
    let (stage, _) = Stage::with_dead(3).await?;
    let console = stage.console().await?;
    browse(&console, "alice", async |browser| {
        browser.tool("Emulation.setScriptExecutionDisabled", json!({ "value": true })).await?;
        browser.client.goto("data:text/html,<title>off</title><script>document.title='on'</script>").await?;
        ensure!(browser.client.title().await? == "off", "scripts run");
        discard(browser, &stage).await
    })
    .await
}

/// Sends a message of another lane, and waits for it: what a relay would have claimed before, it has claimed.
async fn pass(stage: &Stage) -> Result<()> {
    let draft = Draft::new(stage.topic.name(), "beside");
    load::commit(&stage.database, &Ledger::new(), std::slice::from_ref(&draft), |message| message.lane(1)).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) FROM outbox_sent_messages").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_is_paused_and_resumed() -> Result<()> {
    let mut stage = Stage::new(Broker::Kafka).await?;
    let drafts = stage.drafts(1);
    let console = stage.console().await?;
    let paused = "SELECT COUNT(*) FROM outbox_controls WHERE kind = 'lane' AND name = '0' AND actor = 'alice'";
    let mut relays: Vec<Relay> = Vec::new();
    browse(&console, "alice", async |browser| {
        browser.order("/order/pause?lane=0", "a repair", None).await?;
        ensure!(browser.path().await?.contains("/controls"), "{}", browser.text("main").await?);
        ensure!(stage.database.number(paused).await? == 1, "it is not paused");
        relays.push(stage.relay()?);
        stage.commit(&drafts).await?;
        pass(&stage).await?;
        ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_pending WHERE lane = 0").await? == 1, "it is sent");
        browser.go("/controls").await?;
        follow(browser, "resume").await?;
        browser.fill("because", "it is repaired").await?;
        browser.press().await?;
        ensure!(stage.database.number(paused).await? == 0, "it is still paused");
        Ok(())
    })
    .await?;
    ensure!(stage.arrivals(&drafts[0]).await? == 1, "it is not at the broker");
    stage.recorded("pause", "a repair", 0).await?;
    stage.recorded("resume", "it is repaired", 0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sent_messages_are_sent_again_after_a_look_at_the_plan() -> Result<()> {
    let mut stage = Stage::new(Broker::Kafka).await?;
    let drafts = stage.drafts(2);
    let _relay = stage.relay()?;
    stage.commit(&drafts).await?;
    ensure!(stage.arrivals(&drafts[0]).await? == 1, "it is not at the broker");
    let console = stage.console().await?;
    let topic = stage.topic.name().to_owned();
    browse(&console, "alice", async |browser| {
        browser.go("/replay").await?;
        browser.enter("form.filter input[name=topic]", &topic).await?;
        ensure!(stage.orders().await? == 0, "a plan has ordered something");
        browser.fill("because", "a consumer lost them").await?;
        browser.fill("count", "2").await?;
        browser.press().await?;
        ordered(browser).await
    })
    .await?;
    stage.database.wait_for(PATIENCE, OPEN).await?;
    for draft in &drafts {
        let arrived = stage.arrivals(draft).await?;
        ensure!(arrived == 2, "it has arrived {arrived} times");
    }
    stage.recorded("replay", "a consumer lost them", 2).await
}

/// The orders that wait for a relay or a consumer: what matters here is that they are recorded.
#[tokio::test(flavor = "multi_thread")]
async fn the_other_orders_are_recorded() -> Result<()> {
    // Of one key the first message is dead, and the third one waits behind it; the second one is part of a replay. All
    // are dead at a consumer.
    const SCENE: &str = "INSERT INTO outbox_delayed (lane, id, key_hash, bytes, attempts, due_at, holds_key, reason, \
        error) SELECT lane, id, key_hash, bytes, 0, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, 0, 'parked', 'down' \
        FROM outbox_dead WHERE id = 2; \
        INSERT INTO outbox_delayed (lane, id, key_hash, bytes, attempts, due_at, holds_key, reason) \
        SELECT lane, id, 7, bytes, 0, TIMESTAMP'9999-12-31 00:00:00', 0, 'behind' FROM outbox_dead WHERE id = 3; \
        DELETE FROM outbox_dead WHERE id > 1; UPDATE outbox_dead SET key_hash = 7, holds_key = 1; \
        INSERT INTO outbox_replays (id, job_id) VALUES (2, 9); \
        INSERT INTO inbox_dead (consumer, message_id, topic, attempts, died_at, reason) \
        SELECT 'billing', message_id, topic, 3, UTC_TIMESTAMP(6), 'failed' FROM outbox_messages";
    let (stage, _) = Stage::with_dead(3).await?;
    stage.database.execute(SCENE).await?;
    let console = stage.console().await?;
    let begin = stage.orders().await?;
    browse(&console, "alice", async |browser| {
        browser.order("/order/dead/release?all=true", "skip it", None).await?;
        ordered(browser).await?;
        follow(browser, "jobs/stop").await?;
        browser.fill("because", "wait for the team").await?;
        browser.press().await?;
        browser.order("/order/delayed/discard?all=true", "not needed", None).await?;
        ordered(browser).await?;
        browser.go("/consumers").await?;
        follow(browser, "inbox/retry").await?;
        for (count, notice) in [("2", "[role=alert]"), ("3", "[role=status]")] {
            browser.order("/order/inbox/retry?consumer=billing&all=true", "it is back", Some(count)).await?;
            ensure!(browser.count(notice).await? == 1, "{count}: {}", browser.text("main").await?);
        }
        browser.go("/order/inbox/retry?consumer=nobody&all=true").await?;
        ensure!(browser.text("main").await?.contains("has given up no message"), "{}", browser.text("main").await?);
        Ok(())
    })
    .await?;
    stage.recorded("release", "skip it", 1).await?;
    stage.recorded("discard_delayed", "not needed", 1).await?;
    let others = "SELECT COUNT(*) FROM outbox_audit WHERE actor = 'alice' AND (action = 'stop' \
        AND reason = 'wait for the team' OR action = 'inbox-retry' AND reason = 'it is back' AND messages = 3)";
    ensure!(stage.database.number(others).await? == 2, "a stop or a retry is not in the audit");
    ensure!(stage.orders().await? - begin == 6, "there are other orders");
    Ok(())
}

/// A form that is sent more than once, a second tab, and the way back.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_given_again_changes_nothing_more() -> Result<()> {
    const PLAN: &str = "/order/dead/discard?all=true";
    // Of two clicks a browser sends one or two; this sends all.
    const THRICE: &str = "
        const form = document.querySelector('form.confirm');
        const send = () => fetch(form.action, { method: 'POST', body: new URLSearchParams(new FormData(form)) });
        Promise.all([send(), send(), send()]).then(all => arguments[0](all.map(it => it.status)));";
    let (stage, _) = Stage::with_dead(3).await?;
    let console = stage.console().await?;
    browse(&console, "alice", async |browser| {
        let first = browser.client.window().await?;
        let second = browser.client.new_window(true).await?.handle;
        for (tab, because) in [(&second, "another tab"), (&first, "a double click")] {
            browser.client.switch_to_window(tab.clone()).await?;
            browser.go(PLAN).await?;
            browser.fill("because", because).await?;
            browser.fill("count", "3").await?;
        }
        let answers = browser.client.execute_async(THRICE, Vec::new()).await?;
        browser.press().await?;
        let jobs = stage.database.number("SELECT COUNT(*) FROM outbox_jobs").await?;
        ensure!(jobs == 1, "one form has made {jobs} jobs: {answers}");
        browser.client.switch_to_window(second).await?;
        browser.press().await?;
        ordered(browser).await?;
        let _relay = stage.relay()?;
        stage.database.wait_for(PATIENCE, OPEN).await?;
        let done = "SELECT CAST(SUM(done) AS SIGNED) FROM outbox_jobs";
        ensure!(stage.database.number(done).await? == 3, "messages were discarded twice");
        let before = stage.orders().await?;
        browser.leave(async { Ok(browser.client.back().await?) }).await?;
        ensure!(browser.path().await? == PLAN, "the way back leads to {}", browser.path().await?);
        // The browser may keep the page as it was left.
        if browser.count("form.confirm").await? > 0 {
            let again = async { browser.run("document.querySelector('form.confirm').requestSubmit()").await.map(drop) };
            browser.leave(again).await?;
        }
        ensure!(stage.orders().await? == before, "it is ordered once more on the way back");
        Ok(())
    })
    .await?;
    let before = stage.orders().await?;
    let cookie = console.cookie("alice").await?;
    let token = console.form_token("/", &cookie).await?;
    let form = format!("form_token={token}&once=01a22b86-9e69-74df-9e01-9b8a9c5fd923&all=true&because=x&count=3");
    let again = console.post("/order/dead/discard", &[cookie.as_str(), &console.same_origin()].concat(), &form).await?;
    ensure!(stage.orders().await? == before, "it is ordered again: {}", again.status);
    Ok(())
}
