//! Committed messages are delivered unchanged, and no others are.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use testkit::{
    accounts::Account,
    consume::Broker,
    judge::Expectations,
    ledger::Draft,
    load::{self, Load},
    relay::{Metrics, Settings},
    servers::Flavor,
};

use crate::stage::{BROKERS, PATIENCE, Stage};

async fn every_kind_of_message(flavor: Flavor, broker: Broker) -> Result<()> {
    let mut stage = Stage::new(flavor, broker).await?.patient();
    let topic = stage.topic.name().to_owned();
    let binary: Vec<u8> = (0..=255).collect();
    let drafts = [
        Draft::new(&topic, "plain"),
        Draft::new(&topic, "").unordered_key("empty payload"),
        Draft::new(&topic, "null payload").unordered_key("null payload").tombstone(),
        Draft::new(&topic, binary.clone()).unordered_key(binary).described("type", "application/octet-stream"),
        Draft::new(&topic, "empty key").unordered_key(""),
        Draft::new(&topic, "headers").header("zeta", "1").header("alpha", "ü ≠ 🦀").header("empty", ""),
        Draft::new(&topic, "long type").described(&"t".repeat(255), &"c".repeat(255)),
        Draft::new(&topic, vec![7; 900_000]),
        (0..10_000).fold(Draft::new(&topic, "many headers"), |draft, n| draft.header(&format!("h{n}"), "v")),
    ];
    stage.commit(&drafts).await?;
    let _relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(drafts.len())).await
}

#[tokio::test]
async fn every_kind_of_message_arrives_byte_for_byte_on_kafka() -> Result<()> {
    every_kind_of_message(Flavor::MySql, Broker::Kafka).await
}

#[tokio::test]
async fn every_kind_of_message_arrives_byte_for_byte_on_rabbitmq() -> Result<()> {
    every_kind_of_message(Flavor::MySql, Broker::RabbitMq).await
}

#[tokio::test]
async fn every_kind_of_message_arrives_byte_for_byte_from_mariadb() -> Result<()> {
    every_kind_of_message(Flavor::MariaDb, Broker::Kafka).await
}

#[tokio::test]
async fn a_transaction_with_more_messages_than_a_claim_has_arrives_whole() -> Result<()> {
    for broker in BROKERS {
        let mut stage = Stage::new(Flavor::MySql, broker).await?.patient();
        let drafts: Vec<Draft> = (0..4000).map(|number| stage.draft(number)).collect();
        stage.commit(&drafts).await?;
        let _relay = stage.relay()?;
        stage.drain_and_judge(&Expectations::new().at_least(4000)).await?;
    }
    Ok(())
}

/// A relay makes at most one small claim in each interval.
#[tokio::test]
async fn small_claims_keep_their_interval() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    // An eighth of `claim_messages` is more than the load: all claims are small.
    stage.settings = stage.settings.clone().set("relay", "claim_messages", 10_000);
    stage.settings = stage.settings.clone().set("relay", "claim_interval", "1s").set("relay", "poll_interval", "1ms");
    let relay = stage.relay()?;
    let started = Instant::now();
    // So dense that nearly each look finds a message.
    Load::new(stage.topic.name()).tasks(8).transactions(1000).run(&stage.database, &stage.ledger).await?;
    stage.drain_and_judge(&Expectations::new().at_least(1000)).await?;
    let most = started.elapsed().as_secs_f64() + 2.0;
    let claims = relay.metrics().await?.sum_where("outbox_relay_claims_total", "result=\"claimed\"");
    ensure!((1.0..most).contains(&claims), "{claims} claims, {most} at the most");
    Ok(())
}

#[tokio::test]
async fn a_tenth_is_rolled_back_and_nothing_of_it_is_sent() -> Result<()> {
    for flavor in [Flavor::MySql, Flavor::MariaDb] {
        let mut stage = Stage::new(flavor, Broker::Kafka).await?.patient();
        let _relays = [stage.relay()?, stage.relay()?];
        let load = Load::new(stage.topic.name()).transactions(300).rolled_back(0.1);
        load.run(&stage.database, &stage.ledger).await?;
        stage.drain_and_judge(&Expectations::new().at_least(300)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_delayed_message_is_sent_when_it_is_due_and_an_expired_one_never() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    let delayed = [stage.draft(1)];
    let expired = [stage.draft(2)];
    load::commit(&stage.database, &stage.ledger, &delayed, |message| message.delay(Duration::from_secs(2))).await?;
    load::commit(&stage.database, &stage.ledger, &expired, |message| message.expires_after(Duration::from_millis(1)))
        .await?;
    stage
        .database
        .wait_for(PATIENCE, "SELECT COUNT(*) FROM outbox_messages WHERE expires_at < UTC_TIMESTAMP(6)")
        .await?;
    let _relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(2).dead(expired.map(|draft| draft.id))).await?;
    let dead =
        stage.database.number("SELECT COUNT(*) FROM outbox_dead WHERE reason = 'expired' AND attempts = 0").await?;
    let early = "SELECT COUNT(*) FROM outbox_sent_messages s JOIN outbox_messages m ON m.id = s.id \
                 WHERE s.sent_at < m.created_at + INTERVAL 2 SECOND";
    ensure!(dead == 1 && stage.database.number(early).await? == 0);
    Ok(())
}

#[tokio::test]
async fn the_latency_of_a_scheduled_message_counts_from_its_time() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    let hour = |message: outbox_core::Message| message.delay(Duration::from_secs(3600));
    load::commit(&stage.database, &stage.ledger, &[stage.draft(1)], hour).await?;
    load::commit(&stage.database, &stage.ledger, &[stage.draft(2)], |message| message).await?;
    // One message was due an hour after its enqueue, just now; the other one an hour ago.
    let an_hour_ago = "UPDATE outbox_messages SET created_at = created_at - INTERVAL 1 HOUR, \
                       due_at = due_at - INTERVAL 1 HOUR; \
                       UPDATE outbox_delayed SET due_at = due_at - INTERVAL 1 HOUR";
    stage.database.execute(an_hour_ago).await?;
    let relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(2)).await?;
    let metrics = relay.metrics().await?;
    let latency = metrics.sum("outbox_relay_delivery_latency_seconds_sum");
    ensure!(metrics.sum("outbox_relay_delivery_latency_seconds_count") > 1.5);
    ensure!((3600.0..7200.0).contains(&latency), "{latency} s");
    Ok(())
}

/// The relay has read the message, and is stopped.
#[tokio::test]
async fn a_message_that_expires_after_it_was_read_still_goes_out() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    stage.settings = stage.settings.clone().pause_at("before_publish");
    let mut relay = stage.relay()?;
    relay.wait_for_metrics(PATIENCE, "its broker", |m| m.sum("outbox_relay_sink_connected") > 0.5).await?;
    let soon = |message: outbox_core::Message| message.expires_after(Duration::from_secs(6));
    load::commit(&stage.database, &stage.ledger, &[stage.draft(1)], soon).await?;
    relay.wait_for_pause(PATIENCE).await?;
    let expired = "SELECT COUNT(*) FROM outbox_messages WHERE expires_at < UTC_TIMESTAMP(6)";
    stage.database.wait_for(PATIENCE, expired).await?;
    relay.resume()?;
    stage.drain_and_judge(&Expectations::new()).await
}

#[tokio::test]
async fn two_lanes_are_both_served_and_a_lane_of_nobody_waits() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    let first = [stage.draft(1)];
    let second = [stage.draft(2)];
    stage.commit(&first).await?;
    load::commit(&stage.database, &stage.ledger, &second, |message| message.lane(7)).await?;
    stage.settings = stage.settings.clone().set("relay", "lanes", vec![0]);
    let mut relay = stage.relay()?;
    relay.wait_for_metrics(PATIENCE, "one message", |m| m.sum("outbox_relay_published_messages_total") >= 1.0).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 1 FROM outbox_pending WHERE lane = 7").await?;
    relay.stop(PATIENCE).await?;
    stage.settings = stage.settings.clone().set("relay", "lanes", Vec::<i64>::new());
    let _relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(2)).await
}

#[tokio::test]
async fn an_inbox_that_forgets_before_a_replay_can_come_is_told() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?;
    for (kept, too_short) in [("7d", true), ("30d", false)] {
        stage.settings = stage.settings.clone().set("retention", "sent", "30d").set("retention", "inbox", kept);
        let mut relay = stage.relay()?;
        let purges =
            |m: &Metrics| m.sum_where("outbox_relay_loop_last_success_timestamp_seconds", r#"loop="purge""#) > 0.0;
        relay.wait_for_metrics(PATIENCE, "a purge", purges).await?;
        let gauge = relay.metrics().await?.sum("outbox_relay_inbox_window_too_short");
        let said = relay.log()?.contains("a replay of sent messages can apply some of them twice");
        ensure!((gauge > 0.5, said) == (too_short, too_short), "{kept}: {gauge} {said}");
        relay.stop(PATIENCE).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_pending_row_without_its_message_stops_no_other() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    let _relay = stage.relay()?;
    stage.commit(&[stage.draft(1)]).await?;
    // If the relay were not running yet, such a row would be a counter that is too low.
    stage.database.wait_until_drained(PATIENCE).await?;
    stage.database.execute("INSERT INTO outbox_pending (lane, id) VALUES (0, 4000000000)").await?;
    stage.commit(&[stage.draft(2)]).await?;
    let dead = "SELECT COUNT(*) FROM outbox_dead WHERE id = 4000000000 AND reason = 'message_missing'";
    stage.database.wait_for(PATIENCE, dead).await?;
    stage.database.execute("DELETE FROM outbox_dead").await?;
    stage.drain_and_judge(&Expectations::new()).await
}

#[tokio::test]
async fn a_message_without_route_waits_unspent_until_a_relay_has_one_or_it_expires() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    let waiting = [stage.draft(1)];
    let expired = [stage.draft(2)];
    let soon = |message: outbox_core::Message| message.expires_after(Duration::from_millis(1));
    load::commit(&stage.database, &stage.ledger, &waiting, |message| message).await?;
    load::commit(&stage.database, &stage.ledger, &expired, soon).await?;
    let has_expired = "SELECT COUNT(*) FROM outbox_messages WHERE expires_at < UTC_TIMESTAMP(6)";
    stage.database.wait_for(PATIENCE, has_expired).await?;
    let settings = Settings::new(&stage.database.url_as(Account::Relay)?).null().patient();
    let mut relay = crate::stage::start(&settings.route([("topics", "elsewhere"), ("sink", "null")]))?;
    let waits = "SELECT COUNT(*) FROM outbox_delayed WHERE reason = 'no_route' AND attempts = 0";
    stage.database.wait_for(PATIENCE, waits).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) FROM outbox_dead WHERE reason = 'expired'").await?;
    ensure!(relay.log()?.contains("no route matches the topic"), "it is not logged");
    relay.stop(PATIENCE).await?;
    stage.database.execute("UPDATE outbox_delayed SET due_at = UTC_TIMESTAMP(6)").await?;
    let _relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(2).dead(expired.map(|draft| draft.id))).await
}

#[tokio::test]
async fn a_message_above_the_brokers_limit_is_dead_and_its_neighbours_are_not() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    let name = format!("{}-small", stage.topic.name());
    testkit::servers::create_topic_with(stage.topic.address(), &name, 1, &[("max.message.bytes", "20000")]).await?;
    let mut drafts: Vec<Draft> = (0..100).map(|number| stage.draft(number)).collect();
    let large = Draft::new(&name, vec![0; 30_000]);
    drafts.insert(50, large.clone());
    stage.commit(&drafts).await?;
    let _relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(100).dead([large.id])).await
}

#[tokio::test]
async fn sent_messages_past_their_retention_are_purged_and_unsent_ones_are_not() -> Result<()> {
    let stage = Stage::new(Flavor::MySql, Broker::Kafka).await?;
    stage.commit(&[stage.draft(1), stage.draft(2)]).await?;
    load::commit(&stage.database, &stage.ledger, &[stage.draft(3)], |message| message.delay(Duration::from_secs(3600)))
        .await?;
    let settings = stage.settings.clone().set("retention", "sent", "1s");
    let mut relay = crate::stage::start(&settings)?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 1 FROM outbox_messages").await?;
    ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_delayed").await? == 1);
    ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_sent").await? == 0);
    relay.stop(PATIENCE).await
}
