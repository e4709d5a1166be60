//! `relay pause`, `relay resume` and `relay controls`, with the account of `deploy/grants/operator.sql`.

#![expect(clippy::indexing_slicing, reason = "a missing value of JSON is null")]

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testkit::{
    consume::Broker,
    judge::Expectations,
    ledger::Draft,
    load, on_both_databases,
    relay::Metrics,
    servers::{Flavor, until},
};

use crate::stage::{BROKERS, PATIENCE, Stage, start};

on_both_databases!(
    a_paused_lane_waits_even_for_a_new_relay_and_others_go_on,
    a_paused_sink_or_destination_keeps_its_messages_in_order,
    a_pause_ends_at_its_time,
    a_paused_relay_finishes_and_claims_no_more,
    what_cannot_be_paused_or_resumed_is_refused,
);

/// Sends a message in another lane and waits for it: what a relay would have claimed before, it has claimed.
async fn pass(stage: &Stage, draft: Draft) -> Result<()> {
    load::commit(&stage.database, &stage.ledger, std::slice::from_ref(&draft), |message| message.lane(1)).await?;
    let sent = format!(
        "SELECT COUNT(*) FROM outbox_sent_messages s JOIN outbox_messages m ON m.id = s.id WHERE m.message_id = X'{}'",
        draft.id.simple()
    );
    stage.database.wait_for(PATIENCE, &sent).await
}

async fn a_paused_lane_waits_even_for_a_new_relay_and_others_go_on(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?;
    let operator = stage.operator()?;
    let mut relay = stage.relay()?;
    stage.commit(&[stage.draft(0)]).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    operator.done("pause --lane 0 --because", &["a repair"]).await?;
    let paused = |value: f64| {
        move |metrics: &Metrics| {
            let found = metrics.sum_where("outbox_relay_paused", r#"kind="lane",name="0""#);
            (found - value).abs() < 0.5
        }
    };
    relay.wait_for_metrics(PATIENCE, "the pause", paused(1.0)).await?;
    let twice = operator.run("pause --lane 0 --because", &["a repair"]).await?;
    let told = String::from_utf8_lossy(&twice.stderr);
    ensure!(told.contains("The lane 0 was paused already, at ") && told.contains("(a repair)"), "{told}");
    let waiting: Vec<_> = (1..=3).map(|number| stage.draft(number)).collect();
    stage.commit(&waiting).await?;
    pass(&stage, stage.draft(4)).await?;
    relay.stop(PATIENCE).await?;
    relay = stage.relay()?;
    pass(&stage, stage.draft(5)).await?;
    ensure!(
        stage.database.number("SELECT COUNT(*) FROM outbox_pending WHERE lane = 0").await? == 3,
        "{}",
        relay.log()?
    );
    let why = operator.json("why", &[&waiting[0].id.to_string()]).await?;
    ensure!(why["cause"] == "paused" && why["remedy"] == "relay resume --lane 0 --because …", "{why:#}");
    let controls = operator.json("controls", &[]).await?;
    ensure!(controls[0]["name"] == "0" && controls[0]["reason"] == "a repair" && controls[1].is_null(), "{controls:#}");
    operator.done("resume --lane 0 --because", &["it is repaired"]).await?;
    relay.wait_for_metrics(PATIENCE, "the end of the pause", paused(0.0)).await?;
    stage.drain_and_judge(&Expectations::new().at_least(6)).await?;
    let audit = operator.json("audit", &[]).await?;
    let actions = [&audit[1], &audit[0]].map(|entry| [&entry["action"], &entry["target"], &entry["reason"]]);
    ensure!(actions == [["pause", "lane 0", "a repair"], ["resume", "lane 0", "it is repaired"]], "{audit:#}");
    Ok(())
}

async fn a_paused_sink_or_destination_keeps_its_messages_in_order(flavor: Flavor) -> Result<()> {
    for broker in BROKERS {
        let mut stage = Stage::new(flavor, broker).await?.patient();
        let operator = stage.operator()?;
        let mut relay = stage.relay()?;
        let sink = if broker == Broker::Kafka { "kafka" } else { "rabbitmq" };
        let mut number = 0;
        let mut next = || {
            number += 1;
            stage.draft(number).key("k", number as u64)
        };
        stage.commit(&[next()]).await?;
        stage.database.wait_until_drained(PATIENCE).await?;
        let published = relay.metrics().await?.by("outbox_relay_publish_attempts_total", "destination");
        let whole = format!("{sink}/{}", published.first().context("no destination")?.0);
        for what in [["--sink", sink], ["--destination", whole.as_str()]] {
            operator.done("pause", &[&what[..], &["--because", "a repair"]].concat()).await?;
            let paused = |metrics: &Metrics| metrics.sum("outbox_relay_paused") > 0.5;
            relay.wait_for_metrics(PATIENCE, "the pause", paused).await?;
            stage.commit(&[next(), next()]).await?;
            let waits = "SELECT COUNT(*) = 1 FROM outbox_delayed WHERE reason = 'paused' \
                         AND error = 'paused by alice: a repair' \
                         AND attempts = 0";
            stage.database.wait_for(PATIENCE, waits).await?;
            operator.done("resume", &[&what[..], &["--because", "it is repaired"]].concat()).await?;
            stage.database.wait_until_drained(PATIENCE).await?;
        }
        relay.stop(PATIENCE).await?;
        stage.drain_and_judge(&Expectations::new().at_least(5)).await?;
    }
    Ok(())
}

async fn a_pause_ends_at_its_time(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?;
    let operator = stage.operator()?;
    operator.done("pause --lane 0 --for 2s --because test", &[]).await?;
    stage.commit(&[stage.draft(1)]).await?;
    let _relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(1)).await?;
    let early = "SELECT COUNT(*) FROM outbox_sent s, outbox_controls c WHERE s.claimed_at < c.ends_at";
    ensure!(stage.database.number(early).await? == 0, "it was claimed before the end of the pause");
    ensure!(operator.json("controls", &[]).await?[0].is_null());
    Ok(())
}

async fn what_cannot_be_paused_or_resumed_is_refused(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let operator = stage.operator()?;
    for (code, words, part) in [
        (2, "pause --because x", "--lane"),
        (2, "pause --lane 1 --sink kafka --because x", "cannot be used with"),
        (2, "pause --lane 1", "--because"),
        (2, "pause --destination orders --because x", "kafka/orders"),
        (2, "pause --lane 1 --for soon --because x", "30m"),
        (1, "pause --sink kafak --set sinks.kafka.type=null --because x", "there is kafka"),
        (1, "pause --instance nobody --because x", "there is none"),
        (1, "resume --lane 1 --because x", "is not paused"),
    ] {
        let output = operator.run(words, &[]).await?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(code) && text.contains(part), "{words}: {text}");
    }
    let none = "SELECT (SELECT COUNT(*) FROM outbox_controls) + (SELECT COUNT(*) FROM outbox_audit) = 0";
    ensure!(stage.database.number(none).await? == 1, "a refused command has left something");
    Ok(())
}

/// The state of the relay whose name begins so.
pub(crate) async fn state(stage: &Stage, name: &str) -> Result<(String, String)> {
    let instances = stage.operator()?.json("instances", &[]).await?;
    let of = |it: &&Value| it["instance"].as_str().is_some_and(|instance| instance.starts_with(name));
    let found = instances.as_array().and_then(|all| all.iter().find(of)).context("no such relay")?;
    let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    Ok((text("instance"), text("state")))
}

async fn a_paused_relay_finishes_and_claims_no_more(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?.patient();
    let operator = stage.operator()?;
    let mut first = start(&stage.settings.clone().set("relay", "owner", "first"))?;
    let wait = async |stage: &Stage, name: &str, expected: &str| {
        let name = name.to_owned();
        let expected = expected.to_owned();
        until(PATIENCE, "the state of the relay", || async {
            let (instance, found) = state(stage, &name).await?;
            ensure!(found == expected, "{instance} is {found}");
            Ok(instance)
        })
        .await
    };
    let instance = wait(&stage, "first/", "live").await?;
    operator.done("pause --because", &["its machine goes away", "--instance", &instance]).await?;
    wait(&stage, "first/", "drained").await?;
    let paused = |metrics: &Metrics| metrics.sum_where("outbox_relay_paused", "kind=\"instance\"") > 0.5;
    first.wait_for_metrics(PATIENCE, "the pause", paused).await?;

    let second = start(&stage.settings.clone().set("relay", "owner", "second"))?;
    for number in 0..20 {
        stage.commit(&[stage.draft(number)]).await?;
    }
    stage.database.wait_until_drained(PATIENCE).await?;
    let by = "SELECT COUNT(*) FROM outbox_sent WHERE owner LIKE";
    let [one, other] = [format!("{by} 'first/%'"), format!("{by} 'second/%'")];
    ensure!(stage.database.number(&one).await? == 0, "the paused relay has sent: {}", first.log()?);
    ensure!(stage.database.number(&other).await? > 0);

    operator.done("resume --because", &["it stays", "--instance", &instance]).await?;
    wait(&stage, "first/", "live").await?;
    second.kill()?;
    // As if half a minute had passed, and then a day.
    let age = |time: &str| {
        format!("UPDATE outbox_instances SET seen_at = seen_at - INTERVAL {time} WHERE instance LIKE 'second/%'")
    };
    stage.database.execute(&age("31 SECOND")).await?;
    let second = wait(&stage, "second/", "gone").await?;
    let refused = operator.run("pause --because", &["x", "--instance", &second]).await?;
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(1) && text.contains(&format!("there is {instance}")), "{text}");
    let pause = format!(
        "INSERT INTO outbox_controls (kind, name, paused_at, actor, reason) \
         VALUES ('instance', '{second}', UTC_TIMESTAMP(6), 'a', 'x')"
    );
    stage.database.execute(&pause).await?;
    stage.database.execute(&age("1 DAY")).await?;
    let forgotten = "SELECT (SELECT COUNT(*) FROM outbox_instances) = 1 AND (SELECT COUNT(*) FROM outbox_controls) = 0";
    stage.database.wait_for(PATIENCE, forgotten).await?;
    stage.drain_and_judge(&Expectations::new().at_least(20)).await?;
    first.stop(PATIENCE).await?;
    ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_instances").await? == 0, "it has not left");
    Ok(())
}
