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
    let stray = start(&stray)?;
    let by_stray = "SELECT COUNT(*) > 0 FROM outbox_sent WHERE owner LIKE 'stray/%'";
    stage.database.wait_for(PATIENCE, by_stray).await?;
    let (returned, before) = (first.metrics_within(PATIENCE).await?.sum(RETURNED), lost(&first)?);
    until(PATIENCE, "two lost canaries", || async {
        let lost = lost(&first)? - before;
        ensure!(lost >= 2, "{lost}");
        Ok(())
    })
    .await?;
    ensure!(first.metrics_within(PATIENCE).await?.sum(RETURNED) <= returned, "a canary came back");
    let waiting = "SELECT (SELECT COUNT(*) FROM outbox_delayed) + (SELECT COUNT(*) FROM outbox_dead)";
    ensure!(stage.database.number(waiting).await? == 0, "the stall shows elsewhere, too");

    stray.kill()?;
    operator.done("resume --because", &["it was the wrong one", "--instance", &instance]).await?;
    first.wait_for_metrics(PATIENCE, "the canary", |metrics: &Metrics| metrics.sum(RETURNED) > returned).await
}
