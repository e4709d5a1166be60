//! `relay messages` and `relay inbox`, with the account of `deploy/grants/viewer.sql`.

#![expect(clippy::indexing_slicing, reason = "a missing value of JSON is null")]

use std::{collections::BTreeSet, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{Message, Outbox, sqlx::Connection as _};
use serde_json::Value;
use testkit::{consume::Broker, inbox, ledger::Draft, load, on_both_databases, relay::Client, servers::Flavor};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    time::timeout,
};

use crate::stage::{PATIENCE, Stage, account, client};

on_both_databases!(
    messages_are_found_by_topic_key_kind_state_and_time,
    a_budget_is_kept_and_the_rest_is_found_behind_it,
    a_viewer_sees_no_contents_and_a_revealer_leaves_a_record,
    new_messages_are_printed_once,
    the_inbox_shows_consumers_and_outcomes,
);

const VIEWER: &str = include_str!("../../deploy/grants/viewer.sql");
const REVEALER: &str = include_str!("../../deploy/grants/revealer.sql");

async fn viewer(stage: &Stage) -> Result<Client> {
    Ok(client(account(&stage.database, &VIEWER.replace("outbox_viewer", "{user}")).await?))
}

/// The ids of a list, as consumers see them.
fn ids(page: &Value) -> Vec<&str> {
    page["rows"].as_array().into_iter().flatten().filter_map(|row| row["message_id"].as_str()).collect()
}

async fn commit(stage: &Stage, draft: &Draft, change: impl Fn(Message) -> Message + Sync) -> Result<()> {
    load::commit(&stage.database, &stage.ledger, std::slice::from_ref(draft), change).await
}

async fn messages_are_found_by_topic_key_kind_state_and_time(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let viewer = viewer(&stage).await?;
    let topic = stage.topic.name();
    let keyed = |number, key| stage.draft(number).unordered_key(key);
    let sent = keyed(1, "größe 1");
    let dead = keyed(2, "größe 1");
    let other = keyed(3, "k2");
    let plain = stage.draft(4);
    let elsewhere = Draft::new("elsewhere", "5").unordered_key("k2");
    let mut relay = stage.relay()?;
    commit(&stage, &sent, |message| message.event_type("order.paid")).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    relay.stop(PATIENCE).await?;
    commit(&stage, &dead, |message| message).await?;
    let bury = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, error, \
                owner) \
        SELECT lane, id, key_hash, bytes, 1, UTC_TIMESTAMP(6), 0, 'too_large', 'too\nlarge', 'test' \
        FROM outbox_pending; \
        DELETE FROM outbox_pending; UPDATE outbox_messages SET created_at = created_at - INTERVAL 2 HOUR";
    stage.database.execute(bury).await?;
    commit(&stage, &other, |message| message.event_type("größer").lane(7)).await?;
    commit(&stage, &plain, |message| message.delay(std::time::Duration::from_hours(1))).await?;
    commit(&stage, &elsewhere, |message| message).await?;
    for (flags, expected) in [
        (&[][..], &[&elsewhere, &plain, &other, &dead, &sent][..]),
        (&["--topic", topic], &[&plain, &other, &dead, &sent]),
        (&["--topic", topic, "--key", "größe 1"], &[&dead, &sent]),
        (&["--topic", topic, "--key", "k2"], &[&other]),
        (&["--topic", "elsewhere", "--key", "k2"], &[&elsewhere]),
        (&["--key", "k2"], &[&elsewhere, &other]),
        (&["--key", "of nobody"], &[]),
        (&["--topic", topic, "--key", ""], &[]),
        (&["--topic", "größe"], &[]),
        (&["--type", "order.paid"], &[&sent]),
        (&["--type", "größer"], &[&other]),
        (&["--state", "sent"], &[&sent]),
        (&["--state", "dead"], &[&dead]),
        (&["--state", "delayed"], &[&plain]),
        (&["--state", "pending"], &[&elsewhere, &other]),
        (&["--state", "claimed"], &[]),
        (&["--since", "1h"], &[&elsewhere, &plain, &other]),
        (&["--until", "1h"], &[&dead, &sent]),
        (&["--since", "3h", "--until", "1h", "--state", "dead"], &[&dead]),
        (&["--since", "2020-01-01T00:00:00Z", "--limit", "1"], &[&elsewhere]),
        (&["--until", "2020-01-01T00:00:00Z"], &[]),
    ] {
        let page = viewer.json("messages list", flags).await?;
        let expected: Vec<_> = expected.iter().map(|draft| draft.id.to_string()).collect();
        ensure!(ids(&page) == expected, "{flags:?}: {page:#}, not {expected:?}");
    }
    a_dead_and_a_claimed_one(&stage, &viewer, &other).await
}

/// The rows of a dead message and of a claimed one.
async fn a_dead_and_a_claimed_one(stage: &Stage, viewer: &Client, other: &Draft) -> Result<()> {
    let page = viewer.json("messages list --state dead", &[]).await?;
    let row = &page["rows"][0];
    ensure!(row["reason"] == "too_large" && row["lane"] == 0 && row["attempts"] == 1, "{row:#}");
    let table = viewer.done("messages list --state dead", &[]).await?;
    ensure!(table.lines().count() == 2 && table.contains("too\\u{a}large"), "{table}");
    let claim = "INSERT INTO outbox_claims (lane, owner, lease_token, lease_until, claimed_at, message_ids, \
                 key_hashes) \
        SELECT 7, 'relay-x', 1, UTC_TIMESTAMP(6) + INTERVAL 1 MINUTE, UTC_TIMESTAMP(6), CONCAT('[', id, ']'), '' \
        FROM outbox_pending WHERE lane = 7";
    stage.database.execute(claim).await?;
    let page = viewer.json("messages list --state claimed", &[]).await?;
    ensure!(ids(&page) == [other.id.to_string()] && page["rows"][0]["reason"] == "relay-x", "{page:#}");
    Ok(())
}

/// 1,200 messages, read in parts of different sizes: each is found once.
async fn a_budget_is_kept_and_the_rest_is_found_behind_it(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let viewer = viewer(&stage).await?;
    let drafts: Vec<_> =
        (0..1_200).map(|number| stage.draft(number).unordered_key(format!("k{}", number % 2))).collect();
    stage.commit(&drafts).await?;
    let wanted: BTreeSet<_> = drafts.iter().step_by(2).map(|draft| draft.id.to_string()).collect();
    for flags in
        [&["--budget", "100"][..], &["--limit", "7"], &["--limit", "550"], &["--budget", "1200", "--limit", "600"]]
    {
        let mut found = Vec::new();
        let mut below = u64::MAX.to_string();
        for _ in 0..100 {
            let own = ["--topic", stage.topic.name(), "--key", "k0", "--below", &below];
            let page = viewer.json("messages list", &[&own[..], flags].concat()).await?;
            let looked_at = page["looked_at"].as_u64().context("no number")?;
            ensure!(!flags.contains(&"100") || looked_at <= 100, "{flags:?}: {looked_at}");
            found.extend(ids(&page).into_iter().map(str::to_owned));
            let Some(next) = page["next"].as_u64() else { break };
            below = next.to_string();
        }
        ensure!(found.len() == 600, "{flags:?}: {} messages", found.len());
        ensure!(found.into_iter().collect::<BTreeSet<_>>() == wanted, "{flags:?}");
    }
    Ok(())
}

async fn a_viewer_sees_no_contents_and_a_revealer_leaves_a_record(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    // Longer than any width that `format!` takes.
    let payload = format!("secret \u{1b}[2J\u{202e}{}", "x".repeat(66_000));
    let hidden = Draft::new(stage.topic.name(), payload.as_str()).unordered_key("k-secret");
    let binary = Draft::new(stage.topic.name(), vec![0, 255]);
    commit(&stage, &hidden, |message| message.header("tenant", "h-secret")).await?;
    commit(&stage, &binary, |message| message).await?;
    let viewer = viewer(&stage).await?;
    let id = hidden.id.to_string();
    for words in ["messages show", "why", "messages list --limit 9"] {
        let arguments = if words.contains("list") { vec![] } else { vec![id.as_str()] };
        let shown = viewer.done(words, &arguments).await?;
        ensure!(shown.contains(&id) && !shown.contains("secret"), "{shown}");
    }
    let reveal = ["--reveal", "--because", "asked for", id.as_str()];
    // The operator may write the audit and not read contents; the other account the reverse.
    let grants = VIEWER.replace("outbox_viewer", "{user}");
    stage.database.execute(&format!("DROP USER '{}'", user(&viewer)?)).await?;
    let grants_of_contents = format!("{grants} GRANT SELECT ON outbox_messages TO '{{user}}'@'%';");
    let unrecorded = client(account(&stage.database, &grants_of_contents).await?);
    for client in [stage.operator()?, unrecorded.clone()] {
        let refused = client.run("messages show", &reveal).await?;
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(refused.status.code() == Some(1) && text.contains("deploy/grants/revealer.sql"), "{text}");
        ensure!(refused.stdout.is_empty() && !text.contains("secret"), "{text}");
    }
    let audit = "SELECT COUNT(*) FROM outbox_audit";
    ensure!(stage.database.number(audit).await? == 0, "a refused reveal is recorded");
    let grants = [grants, REVEALER.replace("outbox_operator", "{user}")].concat();
    stage.database.execute(&format!("DROP USER '{}'", user(&unrecorded)?)).await?;
    let revealer = client(account(&stage.database, &grants).await?);
    let without_reason = revealer.run("messages show --reveal", &[&id]).await?;
    ensure!(without_reason.status.code() == Some(2), "{without_reason:?}");
    let shown = revealer.json("messages show", &reveal).await?;
    ensure!(shown["payload"] == payload && shown["key"] == "k-secret", "{shown:#}");
    ensure!(shown["headers"]["tenant"] == "h-secret" && shown["state"] == "pending", "{shown:#}");
    for format in ["table", "json"] {
        let output = revealer.done("messages show", &[&reveal[..], &["--format", format]].concat()).await?;
        ensure!(!output.contains(['\u{1b}', '\u{202e}']), "a payload reaches the terminal: {output:?}");
    }
    let shown = revealer.json("messages show --reveal --because x", &[&binary.id.to_string()]).await?;
    ensure!(shown["payload_hex"] == "00ff" && shown["key"].is_null(), "{shown:#}");
    let audit = revealer.json("audit", &[]).await?;
    ensure!(audit.as_array().is_some_and(|entries| entries.len() == 4), "{audit:#}");
    let entry = &audit[3];
    ensure!(entry["action"] == "reveal" && entry["actor"] == "alice" && entry["reason"] == "asked for", "{entry:#}");
    ensure!(entry["target"] == shown_id(&revealer, &id).await?, "{entry:#}");
    Ok(())
}

fn user(client: &Client) -> Result<String> {
    Ok(url::Url::parse(&client.url)?.username().to_owned())
}

/// The number of a message, as the audit writes it.
async fn shown_id(client: &Client, id: &str) -> Result<String> {
    Ok(client.json("why", &[id]).await?["id"].to_string())
}

async fn new_messages_are_printed_once(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let viewer = viewer(&stage).await?;
    let drafts: Vec<_> = (0..14).map(|number| stage.draft(number)).collect();
    stage.commit(&drafts[..12]).await?;
    let mut tail = Command::new(env!("CARGO_BIN_EXE_relay"))
        .args(["messages", "tail", "--format", "json"])
        .env("RELAY__DATABASE__URL", &viewer.url)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(tail.stdout.take().context("no output")?).lines();
    let mut next = async || -> Result<String> {
        let line = timeout(PATIENCE, lines.next_line()).await.context("nothing is printed")??;
        let row: Value = serde_json::from_str(&line.context("it has ended")?)?;
        Ok(row["message_id"].as_str().unwrap_or_default().to_owned())
    };
    for draft in &drafts[2..12] {
        ensure!(next().await? == draft.id.to_string(), "not the last ten that were there");
    }
    // Its transaction has its number before the next ones, and commits after them.
    let mut connection = stage.database.plain().await?;
    let mut late = connection.begin().await?;
    let late_id = Outbox::new().enqueue(&mut late, Message::new(stage.topic.name(), "late")).await?;
    for draft in &drafts[12..] {
        stage.commit(std::slice::from_ref(draft)).await?;
        ensure!(next().await? == draft.id.to_string(), "not the new one");
    }
    late.commit().await?;
    ensure!(next().await? == late_id.to_string(), "not the late one");
    Ok(())
}

async fn the_inbox_shows_consumers_and_outcomes(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?;
    let viewer = viewer(&stage).await?;
    let drafts = [stage.draft(1), stage.draft(2)];
    let _relay = stage.relay()?;
    stage.commit(&drafts).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    inbox::process(&stage.database, "billing", stage.topic.read().await?).await?;
    let give_up = async |consumer: &str, draft: &Draft, reason: &str, error: &str| {
        let id = draft.id.simple();
        let values = format!("'{consumer}', X'{id}', 'x', 3, UTC_TIMESTAMP(6), '{reason}', '{error}'");
        let columns = "consumer, message_id, topic, attempts, died_at, reason, error";
        stage.database.execute(&format!("INSERT INTO inbox_dead ({columns}) VALUES ({values})")).await
    };
    give_up("search", &drafts[0], "failed", "no\nindex").await?;
    let list = viewer.json("inbox list", &[]).await?;
    let names: Vec<_> =
        list.as_array().into_iter().flatten().map(|row| [&row["consumer"], &row["processed"], &row["dead"]]).collect();
    let expected = [[Value::from("billing"), 2.into(), 0.into()], ["search".into(), 0.into(), 1.into()]];
    ensure!(names == expected.each_ref().map(<[Value; 3]>::each_ref), "{list:#}");
    ensure!(list[0]["last_at"].is_string() && list[1]["last_dead_at"].is_string(), "{list:#}");
    give_up("billing", &drafts[1], "attempts", "no").await?;
    let dead = viewer.json("inbox dead", &[]).await?;
    ensure!(dead[0]["consumer"] == "billing" && dead[1]["error"] == "no\nindex" && dead[2].is_null(), "{dead:#}");
    for (flags, expected) in [("--consumer search", drafts[0].id), ("--reason attempts", drafts[1].id)] {
        let dead = viewer.json(&format!("inbox dead {flags}"), &[]).await?;
        ensure!(dead[0]["message_id"] == expected.to_string() && dead[1].is_null(), "{flags}: {dead:#}");
    }
    // It is marked as processed, so that it does not come again.
    let list = viewer.json("inbox list", &[]).await?;
    ensure!(list[0]["processed"] == 1 && list[0]["dead"] == 1, "{list:#}");
    let outcomes = viewer.json("inbox show", &[&drafts[1].id.to_string()]).await?;
    ensure!(outcomes[0]["outcome"] == "dead" && outcomes[1].is_null(), "{outcomes:#}");
    let number = shown_id(&viewer, &drafts[0].id.to_string()).await?;
    for reference in [drafts[0].id.to_string(), number] {
        let outcomes = viewer.json("inbox show", &[&reference]).await?;
        let found: Vec<_> =
            outcomes.as_array().into_iter().flatten().map(|row| [&row["consumer"], &row["outcome"]]).collect();
        ensure!(
            found
                == [["billing", "processed"], ["search", "dead"]]
                    .map(|row| row.map(Value::from))
                    .each_ref()
                    .map(<[Value; 2]>::each_ref),
            "{outcomes:#}"
        );
        ensure!(outcomes[1]["reason"] == "failed", "{outcomes:#}");
    }
    let unknown = viewer.run("inbox show 999999999", &[]).await?;
    ensure!(String::from_utf8_lossy(&unknown.stderr).contains("give its UUID"), "{unknown:?}");
    Ok(())
}
