//! Relays that die, freeze or get a stop signal.

use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::{consume::Broker, judge::Expectations, ledger::Draft, load::Load, relay::Metrics, servers::Flavor};

use crate::stage::{BROKERS, PATIENCE, Stage, start};

/// A relay dies at this point with a claim, and another takes it over. `sent`: the broker may have the messages
/// already.
async fn dies_at(point: &str, broker: Broker, sent: bool) -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, broker).await?;
    let drafts: Vec<Draft> = (1..=200).map(|n| Draft::new(stage.topic.name(), "x").key("one key", n)).collect();
    stage.commit(&drafts).await?;
    let mut first = start(&stage.settings.clone().crash_at(point))?;
    let status = first.wait_for_end(PATIENCE).await?;
    ensure!(!status.success(), "the relay was to die at {point}");
    let second = start(&stage.settings.clone().patient())?;
    let expected = Expectations::new().at_least(200);
    let expected = if sent { expected.duplicates(200) } else { expected };
    stage.database.wait_until_drained(PATIENCE).await?;
    // The server may have finished the last request of the dead relay.
    let its_mark = format!("SELECT COUNT(*) FROM outbox_sent WHERE owner LIKE '%-{}/%'", first.pid());
    let settled = stage.database.number(&its_mark).await? > 0;
    let takeovers = second.metrics_within(PATIENCE).await?.sum("outbox_relay_lease_takeovers_total");
    let expected = expected.witness("a claim was taken over", takeovers > 0.0 || settled);
    stage.judge(&expected).await
}

#[tokio::test]
async fn a_relay_that_dies_after_its_claim_loses_and_doubles_nothing() -> Result<()> {
    dies_at("after_claim", Broker::Kafka, false).await
}

#[tokio::test]
async fn a_relay_that_dies_before_publishing_loses_and_doubles_nothing() -> Result<()> {
    for broker in BROKERS {
        dies_at("before_publish", broker, false).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_relay_that_dies_after_publishing_leaves_duplicates_only() -> Result<()> {
    for broker in BROKERS {
        dies_at("after_publish", broker, true).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_relay_that_dies_before_settling_leaves_duplicates_only() -> Result<()> {
    dies_at("before_settle", Broker::Kafka, true).await
}

#[tokio::test]
async fn a_relay_that_dies_in_mid_settle_leaves_duplicates_only() -> Result<()> {
    dies_at("mid_settle", Broker::Kafka, true).await
}

#[tokio::test]
async fn relays_that_are_killed_under_load_lose_nothing() -> Result<()> {
    for broker in BROKERS {
        let mut stage = Stage::new(Flavor::MySql, broker).await?;
        stage.settings = stage.settings.clone().set("relay", "lease", "10s");
        let survivor = stage.relay()?;
        let load = Load::new(stage.topic.name()).transactions(u64::MAX).pause(Duration::from_millis(5));
        let load = load.start(&stage.database, &stage.ledger).await?;
        for _ in 0..3 {
            let mut victim = stage.relay()?;
            let works = |m: &Metrics| m.sum("outbox_relay_claimed_messages_total") >= 20.0;
            victim.wait_for_metrics(PATIENCE, "a victim that works", works).await?;
            victim.kill()?;
        }
        load.stop().await?;
        stage.database.wait_until_drained(PATIENCE).await?;
        let lost = survivor.metrics().await?.sum("outbox_relay_leases_lost_total");
        ensure!(lost < 0.5, "the survivor lost a lease");
        stage.judge(&Expectations::new().at_least(40).duplicates(3000)).await?;
    }
    Ok(())
}

/// The relay is frozen beyond its lease with a claim that is published and not settled. The fence refuses its later
/// writes.
#[tokio::test]
async fn a_relay_that_was_frozen_beyond_its_lease_changes_nothing() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?;
    let mut frozen = start(&stage.settings.clone().pause_at("before_settle"))?;
    let writes = |metrics: &Metrics| {
        let calls = |operation| metrics.sum_where("outbox_relay_db_call_duration_seconds_count", operation);
        calls(r#"operation="settle""#) + calls(r#"operation="release""#)
    };
    let before = writes(&frozen.metrics_within(PATIENCE).await?);
    stage.commit(&(1..=300).map(|n| stage.draft(0).key("k", n)).collect::<Vec<_>>()).await?;
    frozen.wait_for_pause(PATIENCE).await?;
    let expired = "SELECT COUNT(*) FROM outbox_claims WHERE lease_until < UTC_TIMESTAMP(6)";
    stage.database.wait_for(PATIENCE, expired).await?;
    let second = start(&stage.settings.clone().patient())?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let marks = stage.database.number("SELECT COUNT(*) FROM outbox_sent").await?;
    frozen.resume()?;
    let wrote = |metrics: &Metrics| writes(metrics) > before;
    frozen.wait_for_metrics(PATIENCE, "it to write back what it held", wrote).await?;
    ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_sent").await? == marks, "the old owner changed a state");
    let takeovers = second.metrics_within(PATIENCE).await?.sum("outbox_relay_lease_takeovers_total");
    stage.judge(&Expectations::new().at_least(300).duplicates(300).witness("a take-over", takeovers >= 1.0)).await
}

#[tokio::test]
async fn a_rolling_restart_under_load_makes_no_duplicate() -> Result<()> {
    for broker in BROKERS {
        let mut stage = Stage::new(Flavor::MySql, broker).await?.patient();
        let mut relays = [stage.relay()?, stage.relay()?];
        let load = Load::new(stage.topic.name()).transactions(u64::MAX).pause(Duration::from_millis(2));
        let load = load.start(&stage.database, &stage.ledger).await?;
        for relay in &mut relays {
            relay.wait_for_metrics(PATIENCE, "work", |m| m.sum("outbox_relay_published_messages_total") > 20.0).await?;
            relay.stop(PATIENCE).await?;
            *relay = stage.relay()?;
        }
        for relay in &mut relays {
            relay.wait_for_metrics(PATIENCE, "work", |m| m.sum("outbox_relay_published_messages_total") > 0.0).await?;
        }
        load.stop().await?;
        stage.drain_and_judge(&Expectations::new().at_least(40)).await?;
    }
    Ok(())
}
