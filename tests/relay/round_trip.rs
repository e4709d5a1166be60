//! The canary: a message of the relay's own that it reads at its destination.

use anyhow::{Result, ensure};
use testkit::{
    accounts::Account,
    consume::Broker,
    relay::{Metrics, Relay, Settings},
    servers::{Flavor, create_topic, until},
};

use crate::{
    controls::state,
    stage::{PATIENCE, Stage, start},
};

pub(crate) const GRANTS: &str = include_str!("../../deploy/grants/canary.sql");
const RETURNED: &str = "outbox_relay_canary_last_return_timestamp_seconds";
const DURATION: &str = "outbox_relay_canary_last_duration_seconds";

/// Makes the stage's relays send a canary every three seconds, to a topic that nobody else reads.
pub(crate) async fn with_canaries(mut stage: Stage) -> Result<Stage> {
    let topic = format!("{}-canary", stage.topic.name());
    if stage.topic.broker() == Broker::Kafka {
        create_topic(stage.topic.address(), &topic, 2).await?;
    }
    stage.settings = stage.settings.set("canary", "topic", topic).set("canary", "interval", "3s");
    Ok(stage)
}

/// The number of canaries that the relay knows to be lost.
fn lost(relay: &Relay) -> Result<usize> {
    Ok(relay.log()?.matches("the canary is lost").count())
}

#[tokio::test]
async fn a_canary_comes_back_from_both_brokers_once_it_may_be_enqueued() -> Result<()> {
    for (flavor, broker) in [(Flavor::MySql, Broker::Kafka), (Flavor::MariaDb, Broker::RabbitMq)] {
        let stage = with_canaries(Stage::new(flavor, broker).await?.patient()).await?;
        let mut relay = stage.relay()?;
        until(PATIENCE, "the missing grant", || async {
            let log = relay.log()?;
            ensure!(log.contains("the canary is lost") && log.contains("INSERT"), "{log}");
            Ok(())
        })
        .await?;
        ensure!(relay.metrics_within(PATIENCE).await?.sum(DURATION) == 0.0, "a canary that was not enqueued is back");
        stage.database.execute(GRANTS).await?;
        relay.wait_for_metrics(PATIENCE, "the canary", |metrics: &Metrics| metrics.sum(DURATION) > 0.0).await?;
        relay.stop(PATIENCE).await?;
        ensure!(!relay.log()?.contains(" ERROR "), "{}", relay.log()?);
    }
    Ok(())
}

/// A relay of another environment claims everything and sends it nowhere: no message waits, and none is dead.
#[tokio::test]
async fn a_stranger_that_takes_all_messages_is_seen_by_the_canary_alone() -> Result<()> {
    let stage = with_canaries(Stage::new(Flavor::MySql, Broker::Kafka).await?.patient()).await?;
    stage.database.execute(GRANTS).await?;
    let mut first = start(&stage.settings.clone().set("relay", "owner", "first"))?;
    first.wait_for_metrics(PATIENCE, "the canary", |metrics: &Metrics| metrics.sum(DURATION) > 0.0).await?;
    let (operator, (instance, _)) = (stage.operator()?, state(&stage, "first/").await?);
    operator.done("pause --because", &["maintenance", "--instance", &instance]).await?;

    let url = stage.database.url_as(Account::Relay)?;
    let stray = Settings::new(&url).null().route([("topics", "*"), ("sink", "null")]).set("relay", "owner", "stray");
    until(PATIENCE, "the end of the relay's work", || async {
        let (_, now) = state(&stage, "first/").await?;
        ensure!(now == "drained", "{now}");
        Ok(())
    })
    .await?;
    let stray = start(&stray)?;
    let by_stray = "SELECT COUNT(*) > 0 FROM outbox_sent WHERE owner LIKE 'stray/%'";
    stage.database.wait_for(PATIENCE, by_stray).await?;
    let returned = first.metrics_within(PATIENCE).await?.sum(RETURNED);
    let before = lost(&first)?;
    until(PATIENCE, "two lost canaries", || async {
        let lost = lost(&first)? - before;
        ensure!(lost >= 2, "{lost}");
        Ok(())
    })
    .await?;
    ensure!(first.metrics_within(PATIENCE).await?.sum(RETURNED) <= returned, "a canary came back");
    let seen = first.metrics_within(PATIENCE).await?;
    for other in ["outbox_queue_stalled_lanes", "outbox_relay_publish_failures_total", "outbox_queue_blocked_keys"] {
        ensure!(seen.sum(other) < 1.0, "{other} shows it, too");
    }
    ensure!(seen.sum_where("outbox_queue_messages", "state=\"dead\"") < 1.0, "a canary is dead");

    stray.kill()?;
    operator.done("resume --because", &["it was the wrong one", "--instance", &instance]).await?;
    first.wait_for_metrics(PATIENCE, "the canary", |metrics: &Metrics| metrics.sum(RETURNED) > returned).await
}
