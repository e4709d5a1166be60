//! Brokers that take little at a time: a quota of Kafka, and a slow link.

use anyhow::{Result, ensure};
use testkit::{
    consume::Broker,
    judge::Expectations,
    ledger::Draft,
    proxy::{Direction, Proxy},
    servers::{Flavor, kafka_bootstrap, limit_producer},
};

use crate::stage::{PATIENCE, Stage};

const POSSIBLE: &str = "outbox_relay_possible_duplicates_total";

/// Commits messages of 2 KB, each with a key of its own.
async fn backlog(stage: &Stage, count: usize) -> Result<()> {
    let draft = |_| Draft::new(stage.topic.name(), "x".repeat(2000));
    for first in (0..count).step_by(500) {
        stage.commit(&(first..count.min(first + 500)).map(draft).collect::<Vec<_>>()).await?;
    }
    Ok(())
}

/// Kafka's quotas leave ten seconds of their rate free. So the deadline is that of users: with a shorter one the free
/// part would exceed it.
#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_kafka_gets_few_messages_twice_and_is_named() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?;
    let client = format!("throttled-{}", stage.topic.name());
    limit_producer(&kafka_bootstrap().await?, &client, 200_000).await?;
    let settings = stage.settings.clone().kafka_property("client.id", &client);
    stage.settings = settings.set("relay", "lease", "25s").set("relay", "publish_deadline", "10s");
    backlog(&stage, 2400).await?;
    let relay = stage.relay()?;
    relay.wait_for_log(PATIENCE, "Kafka throttles this client").await?;
    // The rate of the broker is known after the first deadline.
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) >= 1500 FROM outbox_sent_messages").await?;
    let first = relay.metrics().await?.sum(POSSIBLE);
    stage.drain_and_judge(&Expectations::new().at_least(2400).duplicates(120)).await?;
    let later = relay.metrics().await?.sum(POSSIBLE) - first;
    ensure!(later < 24.0, "{first}, then {later} messages may have been sent twice:\n{}", relay.log()?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_link_to_rabbitmq_gets_no_message_twice() -> Result<()> {
    let mut stage = Stage::new(Flavor::MariaDb, Broker::RabbitMq).await?;
    let proxy = Proxy::start(stage.topic.address()).await?;
    proxy.rate(Direction::ToServer, 300_000);
    stage.settings = stage.settings.clone().sink_key("rabbitmq", "url", proxy.address());
    backlog(&stage, 800).await?;
    let relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(800).duplicates(8)).await?;
    let possible = relay.metrics().await?.sum(POSSIBLE);
    ensure!(possible < 8.0, "{possible} messages may have been sent twice:\n{}", relay.log()?);
    Ok(())
}
