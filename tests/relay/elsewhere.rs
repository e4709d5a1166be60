//! `relay replay --to`: messages that a replay sends elsewhere than their route does, with the account of
//! `deploy/grants/operator.sql`.

#![expect(clippy::indexing_slicing, reason = "a missing value of JSON is null")]

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use outbox_core::{REPLAY_HEADER, Uuid};
use serde_json::Value;
use tempfile::NamedTempFile;
use testkit::{
    consume::Broker,
    ledger::Draft,
    load, on_both_databases,
    servers::{Flavor, until},
};

use crate::stage::{BROKERS, PATIENCE, Stage, start};

on_both_databases!(
    a_replay_to_another_destination_goes_there_and_only_there,
    a_message_keeps_its_other_destination_over_take_over_death_and_retry,
    without_the_sink_a_message_goes_nowhere,
    a_replay_elsewhere_must_be_confirmed_with_the_same_text,
    copies_whose_destination_refuses_hold_no_key_and_can_be_discarded,
    a_replay_to_a_destination_that_does_not_exist_is_not_ordered,
);

/// The destination beside that of the route, as `--to` names it.
fn named(stage: &Stage, beside: &str) -> String {
    match stage.topic.broker() {
        Broker::Kafka => format!("kafka/{beside}"),
        Broker::RabbitMq => format!("rabbitmq/{beside}/{beside}"),
    }
}

/// Makes a topic or an exchange with a queue beside that of the route.
async fn beside(stage: &mut Stage) -> Result<String> {
    match stage.topic.broker() {
        Broker::Kafka => {
            let name = format!("{}-repair", stage.topic.name());
            stage.topic.create_beside(&name).await?;
            Ok(name)
        }
        Broker::RabbitMq => stage.topic.beside(None).await,
    }
}

/// Sends messages of two keys, and waits until they are sent.
async fn sent(stage: &Stage, number: usize) -> Result<Vec<Draft>> {
    let drafts: Vec<_> = (0..number).map(|n| stage.draft(n).key(format!("k{}", n % 2), n as u64)).collect();
    stage.commit(&drafts).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    Ok(drafts)
}

/// Orders a replay of all messages; returns the number of its job.
async fn order(stage: &Stage, words: &str, to: Option<&str>) -> Result<u64> {
    let to = to.map(|to| ["--to", to, "--confirm-destination", to]);
    let arguments = [to.iter().flatten().copied().collect(), vec!["--yes", "--because", "a new index"]].concat();
    let ordered = stage.operator()?.json(words, &arguments).await?;
    ordered["job"].as_u64().with_context(|| format!("{ordered:#}"))
}

async fn wait_for_jobs(stage: &Stage) -> Result<()> {
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_jobs WHERE ended_at IS NULL").await
}

/// The arrivals of each message, in their order at each place: whether they are of a replay, and whether elsewhere.
async fn arrivals(stage: &mut Stage, beside: &str) -> Result<BTreeMap<Uuid, Vec<(bool, bool)>>> {
    let mut found: BTreeMap<Uuid, Vec<(bool, bool)>> = BTreeMap::new();
    for arrival in stage.topic.read().await? {
        let is_replay = arrival.headers.iter().any(|(name, _)| name == REPLAY_HEADER);
        // Kafka's topic, or RabbitMQ's routing key, which is also the name of the exchange and of its queue.
        let is_elsewhere = arrival.topic == beside;
        found.entry(arrival.id).or_default().push((is_replay, is_elsewhere));
    }
    for arrivals in found.values_mut() {
        arrivals.sort_unstable();
    }
    Ok(found)
}

const ORIGINAL: (bool, bool) = (false, false);
const REPAIRED: (bool, bool) = (true, true);

async fn a_replay_to_another_destination_goes_there_and_only_there(flavor: Flavor) -> Result<()> {
    for broker in BROKERS {
        let mut stage = Stage::new(flavor, broker).await?.patient();
        let _relay = stage.relay()?;
        let drafts = sent(&stage, 10).await?;
        let beside = beside(&mut stage).await?;
        let to = named(&stage, &beside);
        let operator = stage.operator()?;
        let plan = operator.json("replay --all", &["--to", &to]).await?;
        ensure!(
            plan["plan"]["to"] == to.as_str() && plan["plan"]["messages"] == 10 && plan["job"].is_null(),
            "{plan:#}"
        );
        let job = order(&stage, "replay --all --rate 4", Some(&to)).await?;
        wait_for_jobs(&stage).await?;
        stage.database.wait_until_drained(PATIENCE).await?;
        let found = arrivals(&mut stage, &beside).await?;
        ensure!(found.len() == 10 && found.values().all(|it| *it == [ORIGINAL, REPAIRED]), "{broker:?}: {found:?}");
        for table in ["jobs", "audit"] {
            let rows = operator.json(table, &[]).await?;
            let text = rows[0][if table == "jobs" { "filter" } else { "target" }].as_str().unwrap_or_default();
            let filter: Value = serde_json::from_str(text)?;
            ensure!(filter["to"] == to.as_str() && rows[0]["job"] == job, "{table}: {rows:#}");
        }
        let why = operator.json("why", &[&drafts[0].id.to_string()]).await?;
        let place = why["receipts"][1]["place"].as_str().unwrap_or_default();
        ensure!(why["replayed_to"] == to.as_str() && place.starts_with(&beside), "{why:#}");
        // The next replay is one to the destination of the route.
        order(&stage, "replay --all", None).await?;
        wait_for_jobs(&stage).await?;
        stage.database.wait_until_drained(PATIENCE).await?;
        let found = arrivals(&mut stage, &beside).await?;
        let again = (true, false);
        ensure!(found.values().all(|it| *it == [ORIGINAL, again, REPAIRED]), "{broker:?}: {found:?}");
    }
    Ok(())
}

async fn a_message_keeps_its_other_destination_over_take_over_death_and_retry(flavor: Flavor) -> Result<()> {
    for broker in BROKERS {
        let mut stage = Stage::new(flavor, broker).await?;
        let impatient = stage.settings.clone();
        stage = stage.patient();
        let mut relay = stage.relay()?;
        sent(&stage, 3).await?;
        relay.stop(PATIENCE).await?;
        // A destination that does not exist yet.
        let beside = match broker {
            Broker::Kafka => format!("{}-repair", stage.topic.name()),
            Broker::RabbitMq => {
                let name = stage.topic.beside(None).await?;
                stage.topic.delete_exchange(&name).await?;
                name
            }
        };
        let to = named(&stage, &beside);
        let job = order(&stage, "replay --all", Some(&to)).await?;
        start(&impatient.crash_at("after_claim"))?.wait_for_end(PATIENCE).await?;
        ensure!(
            stage.database.number("SELECT COUNT(*) FROM outbox_claims").await? > 0,
            "{broker:?}: nothing was claimed"
        );
        relay = stage.relay()?;
        stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 3 FROM outbox_dead").await?;
        let operator = stage.operator()?;
        let dead = operator.json("dead list", &[]).await?;
        let id = &dead["rows"][0]["id"];
        let attempts = dead["rows"][0]["attempts"].as_u64();
        ensure!(attempts.is_some_and(|attempts| attempts < 100), "{broker:?}: {dead:#}");
        let why = operator.json("why", &[&id.to_string()]).await?;
        let sentence = format!("Job {job} sends it to {to}, and not to the destination of its route.");
        ensure!(why["why"].as_str().is_some_and(|why| why.contains(&sentence)), "{broker:?}: {why:#}");

        operator.done("pause --lane 0 --because repair", &[]).await?;
        relay.wait_for_metrics(PATIENCE, "the pause", |metrics| metrics.sum("outbox_relay_paused") > 0.5).await?;
        operator.done("dead retry --all --yes --because", &["it exists now"]).await?;
        wait_for_jobs(&stage).await?;
        match broker {
            Broker::Kafka => stage.topic.create_beside(&beside).await?,
            Broker::RabbitMq => stage.topic.bring_back(&beside).await?,
        }
        operator.done("resume --lane 0 --because repaired", &[]).await?;
        stage.database.wait_until_drained(PATIENCE).await?;
        let found = arrivals(&mut stage, &beside).await?;
        ensure!(found.len() == 3 && found.values().all(|it| *it == [ORIGINAL, REPAIRED]), "{broker:?}: {found:?}");
        relay.stop(PATIENCE).await?;
    }
    Ok(())
}

async fn without_the_sink_a_message_goes_nowhere(flavor: Flavor) -> Result<()> {
    for broker in BROKERS {
        let mut stage = Stage::new(flavor, broker).await?.patient();
        let mut relay = stage.relay()?;
        sent(&stage, 1).await?;
        relay.stop(PATIENCE).await?;
        // The operator's configuration has the sink, and that of the next relay has not.
        order(&stage, "replay --all --set sinks.other.type=null", Some("other/x")).await?;
        relay = stage.relay()?;
        let waits = "SELECT COUNT(*) = 1 FROM outbox_delayed WHERE reason = 'no_sink'";
        stage.database.wait_for(PATIENCE, waits).await?;
        let operator = stage.operator()?;
        let delayed = operator.json("delayed list", &[]).await?;
        let row = &delayed["rows"][0];
        ensure!(row["attempts"] == 0 && row["error"] == "this relay has no sink for other/x", "{delayed:#}");
        let why = operator.json("why", &[&row["id"].to_string()]).await?;
        ensure!(why["cause"] == "no_sink" && why["replayed_to"] == "other/x", "{why:#}");
        relay.stop(PATIENCE).await?;
        let all = arrivals(&mut stage, "").await?;
        ensure!(all.values().all(|it| *it == [ORIGINAL]), "{broker:?}: without the sink: {all:?}");

        // A relay that has it.
        let mut other = start(&stage.settings.clone().sink_key("other", "type", "null"))?;
        operator.done("delayed retry --reason no_sink --yes --because", &["a relay has it"]).await?;
        wait_for_jobs(&stage).await?;
        stage.database.wait_until_drained(PATIENCE).await?;
        let place =
            "SELECT COUNT(*) FROM outbox_sent_messages s JOIN outbox_replays r ON r.id = s.id WHERE s.receipt = 'null'";
        ensure!(stage.database.number(place).await? == 1, "{broker:?}: {}", other.log()?);
        other.stop(PATIENCE).await?;
    }
    Ok(())
}

async fn a_replay_elsewhere_must_be_confirmed_with_the_same_text(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?.patient();
    let mut relay = stage.relay()?;
    sent(&stage, 1).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 1 FROM outbox_instances").await?;
    let operator = stage.operator()?;
    let yes = "--yes --because x";
    for (code, words, part) in [
        (2, format!("replay --all --to kafka/a {yes}"), "--confirm-destination kafka/a"),
        (2, format!("replay --all --to kafka/a --confirm-destination kafka/b {yes}"), "--confirm-destination kafka/a"),
        (2, format!("replay --all --to kafka/a --confirm-destination Kafka/a {yes}"), "--confirm-destination kafka/a"),
        (2, "replay --all --to kafka/a --confirm-destination kafka/b".to_owned(), "--confirm-destination kafka/a"),
        (2, format!("replay --all --confirm-destination kafka/a {yes}"), "--to"),
        (2, format!("replay --all --to kafka --confirm-destination kafka {yes}"), "kafka/orders-repair"),
        (2, format!("replay --all --to kafka/ --confirm-destination kafka/ {yes}"), "kafka/orders-repair"),
        (1, format!("replay --all --to kafak/a --confirm-destination kafak/a {yes}"), "there is kafka"),
        (1, "replay --all --to kafak/a".to_owned(), "there is kafka"),
        (1, "replay --all --set sinks.other.type=null --to other/a".to_owned(), "has no sink `other`"),
    ] {
        let output = operator.run(&words, &[]).await?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(code) && text.contains(part), "{words}: {text}");
    }
    ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_jobs").await? == 0, "something was ordered");
    relay.stop(PATIENCE).await
}

/// The flags by which a command knows the sink. `secret` is a file for the address.
fn with_sink(stage: &Stage, secret: &NamedTempFile) -> Result<[String; 4]> {
    let address = stage.topic.address();
    std::fs::write(secret, address)?;
    let (kind, setting) = match stage.topic.broker() {
        Broker::Kafka => ("kafka", format!("sinks.kafka.brokers={address}")),
        Broker::RabbitMq => ("rabbitmq", format!("sinks.rabbitmq.url_file={}", secret.path().display())),
    };
    let set = "--set".to_owned();
    Ok([set.clone(), format!("sinks.{kind}.type={kind}"), set, setting])
}

async fn copies_whose_destination_refuses_hold_no_key_and_can_be_discarded(flavor: Flavor) -> Result<()> {
    for broker in BROKERS {
        let mut stage = Stage::new(flavor, broker).await?.patient();
        stage.settings = stage.settings.clone().set("relay", "unroutable_grace", "1h");
        let mut relay = stage.relay()?;
        sent(&stage, 4).await?;
        // The destination vanishes after the order. The command knows no sink here, so that it cannot look it up.
        let gone = format!("{}-gone", stage.topic.name());
        order(&stage, "replay --all", Some(&named(&stage, &gone))).await?;
        let waits = "SELECT COUNT(*) = 4 FROM outbox_delayed WHERE reason IN ('unroutable', 'behind')";
        stage.database.wait_for(PATIENCE, waits).await?;
        let live: Vec<_> = (4..6_usize).map(|n| stage.draft(n).key(format!("k{}", n % 2), n as u64)).collect();
        stage.commit(&live).await?;
        let all = "SELECT COUNT(DISTINCT id) = 6 FROM outbox_sent_messages";
        stage.database.wait_for(PATIENCE, all).await.with_context(|| format!("{broker:?}: the keys are held"))?;

        let operator = stage.operator()?;
        let why = operator.json("why", &[&live[0].id.to_string()]).await?;
        ensure!(why["state"] == "sent", "{why:#}");
        // A message that no replay sends is left out.
        let scheduled = [stage.draft(6)];
        load::commit(&stage.database, &stage.ledger, &scheduled, |message| message.delay(10 * PATIENCE)).await?;
        let plan = operator.json("delayed discard --all", &[]).await?;
        let left_out = &plan["plan"]["left_out"]["no replay has put it there"];
        // The first copy of each key may be on its way.
        ensure!(plan["plan"]["messages"].as_u64() >= Some(2) && *left_out == 1, "{plan:#}");
        Box::pin(until(PATIENCE, "the copies to go", || async {
            operator.done("delayed discard --all --yes --because", &["the name was wrong"]).await?;
            wait_for_jobs(&stage).await?;
            let left = "SELECT (SELECT COUNT(*) FROM outbox_delayed) + (SELECT COUNT(*) FROM outbox_pending)";
            let left = stage.database.number(left).await?;
            ensure!(left == 1, "{broker:?}: {left} messages wait");
            Ok(())
        }))
        .await?;
        ensure!(
            stage.database.number("SELECT COUNT(*) FROM outbox_messages").await? == 7,
            "{broker:?}: contents are gone"
        );
        let found = arrivals(&mut stage, &gone).await?;
        ensure!(found.len() == 6 && found.values().all(|it| *it == [ORIGINAL]), "{broker:?}: {found:?}");
        relay.stop(PATIENCE).await?;
    }
    Ok(())
}

async fn a_replay_to_a_destination_that_does_not_exist_is_not_ordered(flavor: Flavor) -> Result<()> {
    for broker in BROKERS {
        let mut stage = Stage::new(flavor, broker).await?.patient();
        let mut relay = stage.relay()?;
        sent(&stage, 1).await?;
        let secret = NamedTempFile::new()?;
        let flags = with_sink(&stage, &secret)?;
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let operator = stage.operator()?;
        let missing = named(&stage, &format!("{}-repiar", stage.topic.name()));
        let yes = ["--to", &missing, "--confirm-destination", &missing, "--yes", "--because", "x"];
        let output = operator.run("replay --all", &[&yes[..], &flags].concat()).await?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1) && text.contains("does not exist"), "{broker:?}: {text}");
        ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_jobs").await? == 0, "{broker:?}: it was ordered");
        let to = beside(&mut stage).await?;
        let to = named(&stage, &to);
        let plan = operator.json("replay --all", &[&["--to", to.as_str()][..], &flags].concat()).await?;
        ensure!(plan["plan"]["is_looked_up"] == true && plan["plan"]["messages"] == 1, "{broker:?}: {plan:#}");
        relay.stop(PATIENCE).await?;
    }
    Ok(())
}
