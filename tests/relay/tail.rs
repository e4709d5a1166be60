//! One relay at a time takes a lane without a backlog for itself, and takes its rows from the binary log.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use outbox_core::{
    Outbox,
    sqlx::{self, Connection as _},
    store::claim::tail,
};
use testkit::{
    accounts::Account,
    consume::{Broker, Topic},
    database::Database,
    judge::Expectations,
    ledger::Draft,
    load::{self, Load},
    on_both_databases,
    relay::{Metrics, Relay},
    servers::{Flavor, RabbitMq, until},
};

use crate::{
    destinations::beside,
    stage::{PATIENCE, Stage, start, work},
};

on_both_databases!(
    a_relay_that_serves_a_lane_alone_takes_its_rows_from_the_log,
    a_tail_of_a_dead_relay_becomes_a_list_and_is_taken_over,
    a_frozen_owner_takes_nothing_more_once_it_goes_on,
    a_tail_that_is_closed_again_and_again_costs_nothing,
    a_message_that_the_log_does_not_show_is_sent_and_counted_and_ends_the_tail,
    idle_lanes_and_new_ones_are_woken_by_the_log,
);

const TAILED: &str = "SELECT COUNT(*) = 1 FROM outbox_claims WHERE kind = 1";

async fn stage(flavor: Flavor, broker: Broker) -> Result<Stage> {
    let mut stage = Stage::new(flavor, broker).await?;
    let url = stage.database.url_as(Account::RelayWithTail)?;
    stage.settings = stage.settings.clone().set("database", "url", url).set("relay", "tail", "auto");
    Ok(stage)
}

fn trickle(stage: &Stage) -> Load {
    Load::new(stage.topic.name()).tasks(3).transactions(u64::MAX).pause(Duration::from_millis(4))
}

/// Claims that were made by looks.
async fn claims(relays: &[Relay]) -> Result<f64> {
    let mut sum = 0.0;
    for relay in relays {
        sum += relay.metrics().await?.sum_where("outbox_relay_claims_total", r#"result="claimed""#);
    }
    Ok(sum)
}

/// Closes the tail of the only lane.
async fn close(stage: &Stage) -> Result<()> {
    let mut connection = stage.database.connect_as_admin().await?;
    for stale in tail::all(&mut connection).await? {
        tail::close(&mut connection, stale.tail.lease, Duration::ZERO).await?;
    }
    Ok(())
}

async fn a_relay_that_serves_a_lane_alone_takes_its_rows_from_the_log(flavor: Flavor) -> Result<()> {
    let mut stage = stage(flavor, Broker::Kafka).await?;
    let relays = [stage.relay()?, stage.relay()?];
    let load = trickle(&stage).start(&stage.database, &stage.ledger).await?;
    // The first messages to a new topic are sent one by one, and such rows end a tail.
    let alone = until(PATIENCE, "messages without a claim", || async {
        stage.database.wait_for(PATIENCE, TAILED).await?;
        let before = claims(&relays).await?;
        work(&relays, 300.0).await?;
        ensure!((claims(&relays).await? - before).abs() < 0.5, "a claim was made");
        Ok(())
    });
    Box::pin(alone).await?;
    load.stop().await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_claims").await?;
    // The tail ends for lack of messages, and says so.
    until(PATIENCE, "an idle end", || async {
        let mut idle = 0.0;
        let mut missed = 0.0;
        for relay in &relays {
            let metrics = relay.metrics().await?;
            idle += metrics.sum_where("outbox_relay_tail_ends_total", r#"reason="idle""#);
            missed += metrics.sum("outbox_relay_tail_missed_total");
        }
        ensure!(idle > 0.5 && missed < 0.5, "{idle} tails ended so, the log did not show {missed} rows");
        Ok(())
    })
    .await?;
    stage.drain_and_judge(&Expectations::new().at_least(300)).await
}

/// Starts two relays: the first one has the tail.
async fn owner_and_other(stage: &Stage) -> Result<[Relay; 2]> {
    let [first, second] = ["first", "second"].map(|name| start(&stage.settings.clone().set("relay", "owner", name)));
    let relays = [first?, second?];
    work(&relays, 100.0).await?;
    stage.database.wait_for(PATIENCE, TAILED).await?;
    let is_first = stage.database.number(&format!("{TAILED} AND owner LIKE 'first/%'")).await? == 1;
    let [first, second] = relays;
    Ok(if is_first { [first, second] } else { [second, first] })
}

async fn a_tail_of_a_dead_relay_becomes_a_list_and_is_taken_over(flavor: Flavor) -> Result<()> {
    let mut stage = stage(flavor, Broker::RabbitMq).await?.patient();
    // Later messages of listed keys wait for the lease.
    let load = trickle(&stage).keys(100_000).start(&stage.database, &stage.ledger).await?;
    let [owner, mut other] = owner_and_other(&stage).await?;
    owner.kill()?;
    work(std::slice::from_ref(&other), 50.0).await?;
    let before = other.metrics_within(PATIENCE).await?;
    ensure!(before.sum("outbox_relay_lease_takeovers_total") < 0.5, "the lane stood still until the lease had passed");
    let taken_over = |metrics: &Metrics| metrics.sum("outbox_relay_lease_takeovers_total") >= 1.0;
    other.wait_for_metrics(PATIENCE, "a take-over", taken_over).await?;
    load.stop().await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let announced = other.metrics_within(PATIENCE).await?;
    let announced = announced.sum_where("outbox_relay_possible_duplicates_total", r#"cause="takeover""#);
    let report = stage.report().await?;
    report.assert_ok(&Expectations::new().at_least(100).duplicates(3000))?;
    let duplicates = report.duplicates.len();
    ensure!(f64::from(u32::try_from(duplicates)?) <= announced, "{duplicates} duplicates, {announced} announced");
    Ok(())
}

async fn a_frozen_owner_takes_nothing_more_once_it_goes_on(flavor: Flavor) -> Result<()> {
    let mut stage = stage(flavor, Broker::Kafka).await?;
    let load = trickle(&stage).start(&stage.database, &stage.ledger).await?;
    let [owner, other] = owner_and_other(&stage).await?;
    owner.pause()?;
    owner.wait_for_pause(PATIENCE).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_claims WHERE kind > 0").await?;
    work(std::slice::from_ref(&other), 200.0).await?;
    owner.resume()?;
    let relays = [owner, other];
    work(&relays, 200.0).await?;
    load.stop().await?;
    stage.drain_and_judge(&Expectations::new().at_least(300).duplicates(3000)).await
}

async fn a_tail_that_is_closed_again_and_again_costs_nothing(flavor: Flavor) -> Result<()> {
    let mut stage = stage(flavor, Broker::RabbitMq).await?;
    let load = trickle(&stage).start(&stage.database, &stage.ledger).await?;
    let relays = [stage.relay()?, stage.relay()?];
    for _ in 0..3 {
        stage.database.wait_for(PATIENCE, TAILED).await?;
        close(&stage).await?;
        stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_claims WHERE kind = 2").await?;
    }
    work(&relays, 50.0).await?;
    load.stop().await?;
    stage.drain_and_judge(&Expectations::new().at_least(100)).await
}

async fn a_message_that_the_log_does_not_show_is_sent_and_counted_and_ends_the_tail(flavor: Flavor) -> Result<()> {
    let mut stage = stage(flavor, Broker::Kafka).await?;
    let load = trickle(&stage).start(&stage.database, &stage.ledger).await?;
    let [mut owner, other] = owner_and_other(&stage).await?;
    // The tail must still be there when the sweep comes.
    other.kill()?;
    let mut hidden = stage.database.connect_as_admin().await?;
    sqlx::query("SET sql_log_bin = 0").execute(&mut hidden).await?;
    let drafts = [Draft::new(stage.topic.name(), "hidden")];
    let mut tx = hidden.begin().await?;
    let opened = stage.ledger.open(&drafts);
    Outbox::new().enqueue_all(&mut tx, drafts.iter().map(Draft::message)).await?;
    load::insert_business_rows(&mut tx, &drafts).await?;
    tx.commit().await?;
    opened.committed();
    let missed = |metrics: &Metrics| {
        metrics.sum("outbox_relay_tail_missed_total") > 0.5
            && metrics.sum_where("outbox_relay_tail_ends_total", r#"reason="missed""#) > 0.5
    };
    owner.wait_for_metrics(PATIENCE, "a missed message", missed).await?;
    load.stop().await?;
    stage.drain_and_judge(&Expectations::new().at_least(100)).await
}

async fn idle_lanes_and_new_ones_are_woken_by_the_log(flavor: Flavor) -> Result<()> {
    let mut stage = stage(flavor, Broker::Kafka).await?;
    // Looks alone would find no message in time.
    stage.settings = stage.settings.clone().set("relay", "poll_interval", "1h");
    let load = trickle(&stage).start(&stage.database, &stage.ledger).await?;
    let mut relay = stage.relay()?;
    stage.database.wait_for(PATIENCE, TAILED).await?;
    load.stop().await?;
    let idle = |metrics: &Metrics| metrics.sum_where("outbox_relay_tail_ends_total", r#"reason="idle""#) > 0.5;
    relay.wait_for_metrics(PATIENCE, "an idle end", idle).await?;
    // The lane is not served yet.
    load::commit(&stage.database, &stage.ledger, &[stage.draft(0)], |message| message.lane(1)).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let searches =
        |metrics: &Metrics| metrics.sum_where("outbox_relay_db_call_duration_seconds_count", r#"operation="lanes""#);
    for lane in [0, 1] {
        let looks = Cell::new((-1.0, Instant::now()));
        let woken = until(PATIENCE, "an idle lane that is woken without a search", || async {
            let before = relay.metrics().await?;
            let now = before.sum("outbox_relay_claims_total");
            let (last, since) = looks.get();
            if now - last > 0.5 {
                looks.set((now, Instant::now()));
            }
            // A lane that is not idle is looked at after a sixteenth of the first second at the latest.
            ensure!(now - last < 0.5 && since.elapsed() > Duration::from_millis(200), "a lane is looked at");
            load::commit(&stage.database, &stage.ledger, &[stage.draft(0)], |message| message.lane(lane)).await?;
            stage.database.wait_until_drained(PATIENCE).await?;
            ensure!(searches(&relay.metrics().await?) - searches(&before) < 0.5, "a search has found the message");
            Ok(())
        });
        Box::pin(woken).await?;
    }
    stage.judge(&Expectations::new().at_least(3)).await
}

#[tokio::test]
async fn of_a_key_the_earlier_message_is_settled_first() -> Result<()> {
    late_settlement(false).await
}

#[tokio::test]
async fn usual_claims_leave_the_keys_of_a_list_alone_that_was_a_tail() -> Result<()> {
    late_settlement(true).await
}

/// Commits a message of a key beside one that is confirmed late, and later ones of the key, `after_end` of the tail. A
/// replay sends in the order of the claims that the receipts name.
async fn late_settlement(after_end: bool) -> Result<()> {
    let server = RabbitMq::start().await?;
    let topic = Topic::create_on(Broker::RabbitMq, &server.amqp_url()).await?;
    let mut stage = Stage::with(Database::create(Flavor::MySql).await?, topic)?;
    let silent = beside(&mut stage).await?;
    let url = stage.database.url_as(Account::RelayWithTail)?;
    stage.settings = stage.settings.set("database", "url", url).set("relay", "tail", "auto");
    let relays = [stage.relay()?];
    let load = trickle(&stage).keys(100_000).start(&stage.database, &stage.ledger).await?;
    // The first message to a new destination is sent alone.
    stage.commit(&[Draft::new(&silent, "first")]).await?;
    work(&relays, 100.0).await?;
    stage.database.wait_for(PATIENCE, TAILED).await?;
    server.suspend_queue(&silent).await?;
    stage.commit(&[Draft::new(&silent, "late"), stage.draft(0).key("k", 1)]).await?;
    if after_end {
        // Not before it is in flight.
        work(&relays, 50.0).await?;
        close(&stage).await?;
        stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_claims WHERE kind > 0").await?;
    }
    for number in 2..20 {
        stage.commit(&[stage.draft(0).key("k", number)]).await?;
    }
    work(&relays, 200.0).await?;
    load.stop().await?;
    server.resume_queue(&silent).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let receipts = "SELECT m.id, MAX(s.claim_id) claim_id \
        FROM outbox_sent s, JSON_TABLE(s.message_ids, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) l, \
        outbox_messages m \
        WHERE m.id = l.id AND m.message_key = 'k' GROUP BY m.id";
    let early =
        format!("SELECT COUNT(*) FROM ({receipts}) a JOIN ({receipts}) b ON a.id < b.id AND a.claim_id > b.claim_id");
    let early = stage.database.number(&early).await?;
    ensure!(early == 0, "{early} pairs of messages have receipts in the wrong order");
    // Messages on a channel with unconfirmed ones are sent again.
    stage.judge(&Expectations::new().at_least(100).duplicates(3000)).await
}
