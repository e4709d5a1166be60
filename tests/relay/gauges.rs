//! The gauges of the queue: one relay counts for all.

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use outbox_core::sqlx::{self, Connection as _};
use testkit::{
    consume::Broker,
    load, on_both_databases,
    relay::Metrics,
    servers::{Flavor, promtool, until},
};
use tokio::{io::AsyncWriteExt as _, process::Command};

use crate::stage::{PATIENCE, Stage, start};

on_both_databases!(
    one_relay_counts_for_all_until_it_dies,
    a_lane_that_stands_still_and_the_cause_of_a_lag_are_shown,
    a_claim_that_nobody_can_take_over_is_shown,
);

const COUNTING: &str = "SELECT COUNT(*) = 1 FROM outbox_instances WHERE counts IS NOT NULL AND instance LIKE";

async fn schedule(stage: &Stage, number: usize) -> Result<()> {
    load::commit(&stage.database, &stage.ledger, &[stage.draft(number)], |message| {
        message.delay(Duration::from_hours(1))
    })
    .await
}

async fn one_relay_counts_for_all_until_it_dies(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    schedule(&stage, 1).await?;
    let mut first = start(&stage.settings.clone().set("relay", "owner", "first"))?;
    stage.database.wait_for(PATIENCE, &format!("{COUNTING} 'first/%'")).await?;
    let mut second = start(&stage.settings.clone().set("relay", "owner", "second"))?;
    let delayed = |number: f64| {
        move |metrics: &Metrics| {
            (metrics.sum_where("outbox_queue_messages", "state=\"delayed\"") - number).abs() < 0.5
                && metrics.sum("outbox_queue_observed_timestamp_seconds") > 1e9
        }
    };
    second.wait_for_metrics(PATIENCE, "the numbers of the other relay", delayed(1.0)).await?;
    schedule(&stage, 2).await?;
    for relay in [&mut first, &mut second] {
        relay.wait_for_metrics(PATIENCE, "two delayed messages", delayed(2.0)).await?;
    }
    // A relay that counts for itself has a time of its own.
    until(PATIENCE, "the numbers of one count on both", || async {
        let first = first.metrics().await?;
        let second = second.metrics().await?;
        let [first, second] = [first, second].map(|metrics| metrics.sum("outbox_queue_observed_timestamp_seconds"));
        ensure!(first.to_bits() == second.to_bits(), "{first} and {second}");
        Ok(())
    })
    .await?;

    first.kill()?;
    schedule(&stage, 3).await?;
    second.wait_for_metrics(PATIENCE, "three delayed messages", delayed(3.0)).await?;
    ensure!(stage.database.number(&format!("{COUNTING} 'second/%'")).await? == 1, "no relay counts");
    stage.commit(&[stage.draft(4)]).await?;
    let is_sent = |metrics: &Metrics| metrics.sum("outbox_relay_published_messages_total") > 0.5;
    second.wait_for_metrics(PATIENCE, "a message to be sent", is_sent).await?;
    let (status, page) = second.get("/metrics").await?;
    ensure!(status == 200, "{status}");
    lint(&page).await?;
    second.stop(PATIENCE).await
}

/// The next message will have been due for ten minutes, and the dead one is deleted in a day.
const OLD: &str = "UPDATE outbox_messages SET created_at = created_at - INTERVAL 10 MINUTE; \
    INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, owner) \
    VALUES (0, 0, 0, 0, 1, UTC_TIMESTAMP(6) - INTERVAL 29 DAY, 0, 'too_large', 'test')";

async fn a_lane_that_stands_still_and_the_cause_of_a_lag_are_shown(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    load::commit(&stage.database, &stage.ledger, &[stage.draft(1)], |message| message.lane(5)).await?;
    stage.database.execute(OLD).await?;
    let mut relay = start(&stage.settings.clone().set("relay", "lanes", vec![0]))?;
    let lag =
        |metrics: &Metrics, cause: &str| metrics.sum_where("outbox_queue_lag_seconds", &format!("cause=\"{cause}\""));
    let unserved = |metrics: &Metrics| metrics.sum_where("outbox_queue_stalled_lanes", "state=\"unserved\"");
    let shown = |metrics: &Metrics| lag(metrics, "due") > 590.0 && (unserved(metrics) - 1.0).abs() < 0.5;
    relay.wait_for_metrics(PATIENCE, "a lane that nobody serves", shown).await?;
    let metrics = relay.metrics().await?;
    let ends = metrics.sum("outbox_queue_next_dead_purge_timestamp_seconds");
    let left = ends - metrics.sum("outbox_queue_observed_timestamp_seconds");
    ensure!((80_000.0..87_000.0).contains(&left), "{left} s are left");
    let live = |metrics: &Metrics| metrics.sum_where("outbox_relay_instances", "role=\"relay\",state=\"live\"") > 0.5;
    relay.wait_for_metrics(PATIENCE, "the relay's own heartbeat", live).await?;
    stage.operator()?.done("pause --lane 5 --because", &["a test"]).await?;
    let paused =
        |metrics: &Metrics| lag(metrics, "paused") > 590.0 && lag(metrics, "due") < 0.5 && unserved(metrics) < 0.5;
    relay.wait_for_metrics(PATIENCE, "a paused lane", paused).await?;
    relay.stop(PATIENCE).await
}

async fn a_claim_that_nobody_can_take_over_is_shown(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let claim = "INSERT INTO outbox_claims (lane, owner, lease_token, lease_until, claimed_at, message_ids, \
                 key_hashes) \
        VALUES (0, 'dead', 7, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), '[]', '')";
    stage.database.execute(claim).await?;
    let mut locker = stage.database.plain().await?;
    let mut lock = locker.begin().await?;
    sqlx::query("SELECT claim_id FROM outbox_claims FOR UPDATE").fetch_all(&mut *lock).await?;
    let mut relay = start(&stage.settings)?;
    let left = |number: f64| move |metrics: &Metrics| (metrics.sum("outbox_queue_expired_leases") - number).abs() < 0.5;
    relay.wait_for_metrics(PATIENCE, "a claim of a dead relay", left(1.0)).await?;
    lock.rollback().await?;
    let taken_over = |metrics: &Metrics| metrics.sum("outbox_relay_lease_takeovers_total") > 0.5 && left(0.0)(metrics);
    relay.wait_for_metrics(PATIENCE, "the claim to be taken over", taken_over).await?;
    relay.stop(PATIENCE).await
}

/// Checks names, units and help as Prometheus' own tool does.
async fn lint(page: &str) -> Result<()> {
    let tool = tokio::task::spawn_blocking(|| promtool(&["check", "metrics"])).await??;
    let mut child = Command::from(tool).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("no input")?.write_all(page.as_bytes()).await?;
    let output = child.wait_with_output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
