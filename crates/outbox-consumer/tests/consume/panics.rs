//! A panic of the consumer itself, and brokers that are away at its end.

use std::{future::pending, time::Duration};

use anyhow::{Context as _, Result};
use outbox_consumer::ConsumerError;
use testkit::{
    consume::{Broker, Topic},
    servers::Kafka,
};
use tokio::time::timeout;

use crate::{
    lines::Lines,
    stage::{Does, Stage, Work, messages},
};

/// A line of a callback of librdkafka, and one of the consumer's own loop.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_a_callback_or_of_the_loop_ends_the_consumer_with_an_error() -> Result<()> {
    let stage = Stage::new(Broker::Kafka).await?;
    let sent = messages(1, 1, "ok");
    stage.topic.send(&sent).await?;
    for text in ["partitions", "is older than the inbox remembers"] {
        let consumer = stage.kafka()?.inbox_retention(Duration::from_nanos(1));
        let ended = Lines::closed_at(text).end_of(consumer.run(Work(Does::work()), pending())).await?;
        assert!(matches!(ended, Err(ConsumerError::Internal(_))), "{text}: {ended:?}");
    }
    let next = stage.consume(&Does::work())?;
    stage.wait_for(sent.len()).await?;
    stage.assert_once_and_in_order(&sent).await?;
    next.stop().await
}

/// A commit waits for 45 s and more.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_stops_within_its_deadline_while_kafka_is_frozen() -> Result<()> {
    let server = Kafka::start().await?;
    let stage = Stage::with(Topic::create_on(Broker::Kafka, &server.bootstrap()).await?).await?;
    let consumer = Stage::start_kafka(stage.kafka()?.stop_deadline(Duration::from_secs(1)), &Does::work())?;
    stage.topic.send(&messages(10, 5, "ok")).await?;
    stage.wait_for(10).await?;
    server.pause()?;
    timeout(Duration::from_secs(20), consumer.stop()).await.context("it waits for Kafka")?
}
