//! The log of a consumer names what its broker lacks, and repeats it a limited number of times.

use std::time::Duration;

use anyhow::{Result, ensure};
use outbox_consumer::{
    Metrics, kafka,
    outbox_core::Uuid,
    prometheus::{Registry, proto::MetricFamily},
    rabbitmq,
};
use testkit::{
    consume::{Broker, Sending, Topic},
    servers::{create_topic, create_topic_with, until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    lines::Lines,
    stage::{Does, PATIENCE, Stage, Work, messages},
};

const EVENTS: &str = "outbox_inbox_broker_events_total";

fn new_name() -> String {
    format!("test-{}", Uuid::now_v7())
}

/// The value of a series of these metrics.
fn value(registry: &Registry, name: &str, event: &str) -> f64 {
    let families = registry.gather();
    let series = families.iter().filter(|it| it.name() == name).flat_map(MetricFamily::get_metric);
    let named = series.filter(|it| event.is_empty() || it.get_label().iter().any(|label| label.value() == event));
    named.map(|it| it.get_counter().get_value()).sum()
}

async fn counted(registry: &Registry, name: &str, event: &str, least: f64) -> Result<()> {
    until(PATIENCE, name, || async {
        let value = value(registry, name, event);
        ensure!(value >= least, "{event} is {value}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_is_reported_again_and_again_until_it_is_there() -> Result<()> {
    let address = Broker::Kafka.address().await?;
    let name = new_name();
    let stage = Stage::with(Topic::of_kafka(&address, &name)).await?;
    let registry = Registry::new();
    let stop = CancellationToken::new();
    let lines = Lines::default();
    let run = stage.kafka()?.metrics(Metrics::register(&registry)?);
    let ended = lines.end_of(run.run(Work(Does::work()), stop.clone().cancelled_owned()));
    let watched = async {
        counted(&registry, EVENTS, "missing", 2.0).await?;
        create_topic(&address, &name, 1).await?;
        stage.topic.send(&messages(1, 1, "ok")).await?;
        stage.wait_for(1).await?;
        stop.cancel();
        anyhow::Ok(())
    };
    let (ended, watched) = tokio::join!(ended, watched);
    watched?;
    ended??;
    assert!(!lines.with("a topic does not exist").is_empty());
    assert_eq!(lines.with("consumes from Kafka").len(), 1);
    assert_eq!(lines.with("kept for").len(), 0, "{:?}", lines.with("kept for"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_queue_is_no_lost_connection() -> Result<()> {
    let stage = Stage::new(Broker::RabbitMq).await?;
    let registry = Registry::new();
    let stop = CancellationToken::new();
    let lines = Lines::default();
    let name = new_name();
    let consumer = rabbitmq::Consumer::new(stage.topic.address(), &name, &name, stage.pool.clone())?;
    let run = consumer.metrics(Metrics::register(&registry)?);
    let ended = lines.end_of(run.run(Work(Does::work()), stop.clone().cancelled_owned()));
    let watched = async {
        counted(&registry, EVENTS, "missing", 3.0).await?;
        stop.cancel();
        anyhow::Ok(())
    };
    let (ended, watched) = tokio::join!(ended, watched);
    watched?;
    ended??;
    assert!(value(&registry, "outbox_inbox_disconnects_total", "") < 0.5);
    assert!(lines.with("no queue").iter().any(|line| line.contains(&name)), "{:?}", lines.with("queue"));
    assert_eq!(lines.with("no connection").len(), 0);
    Ok(())
}

/// A batch that is larger than the client may receive.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_cannot_be_read_is_counted() -> Result<()> {
    let stage = Stage::new(Broker::Kafka).await?;
    stage.topic.send(&[Sending::new("large", "x".repeat(5000))]).await?;
    let small = |consumer: kafka::Consumer| {
        let sizes = [("message.max.bytes", "1000"), ("fetch.max.bytes", "1000"), ("receive.message.max.bytes", "1512")];
        sizes.into_iter().fold(consumer, |consumer, (name, bytes)| consumer.property(name, bytes))
    };
    let consumer = Stage::start_kafka(small(stage.kafka()?), &Does::work())?;
    until(PATIENCE, "the metric", || async {
        let unreadable = consumer.labelled(EVENTS, "event", "unreadable");
        ensure!(unreadable >= 2.0, "{unreadable}");
        Ok(())
    })
    .await?;
    consumer.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_kept_for_ever_is_told_without_a_number() -> Result<()> {
    let address = Broker::Kafka.address().await?;
    let name = new_name();
    create_topic_with(&address, &name, 1, &[("retention.ms", "-1")]).await?;
    let stage = Stage::with(Topic::of_kafka(&address, &name)).await?;
    let stop = CancellationToken::new();
    let lines = Lines::default();
    let run = stage.kafka()?.inbox_retention(Duration::from_secs(60));
    let ended = lines.end_of(run.run(Work(Does::work()), stop.clone().cancelled_owned()));
    let told = until(PATIENCE, "the warning", || async {
        ensure!(!lines.with("is kept for ever").is_empty());
        Ok(())
    });
    let watched = async {
        told.await?;
        stop.cancel();
        anyhow::Ok(())
    };
    let (ended, watched) = tokio::join!(ended, watched);
    watched?;
    ended??;
    assert_eq!(lines.with(" h ").len(), 0);
    Ok(())
}

/// The broker compresses them: a topic's setting that the service may not know.
#[tokio::test(flavor = "multi_thread")]
async fn batches_in_zstd_are_read() -> Result<()> {
    let address = Broker::Kafka.address().await?;
    let name = new_name();
    create_topic_with(&address, &name, 1, &[("compression.type", "zstd")]).await?;
    let stage = Stage::with(Topic::of_kafka(&address, &name)).await?;
    let sent = messages(20, 5, "ok");
    stage.topic.send(&sent).await?;
    let consumer = stage.consume(&Does::work())?;
    tokio::select! {
        done = stage.wait_for(sent.len()) => done?,
        counted = until(PATIENCE, "the metric", || async {
            ensure!(consumer.labelled(EVENTS, "event", "unreadable") >= 20.0);
            Ok(())
        }) => anyhow::bail!("unreadable: {counted:?}"),
    }
    stage.assert_once_and_in_order(&sent).await?;
    consumer.stop().await
}
