//! The broker ends in the middle: consumers wait for it, and go on.

use anyhow::Result;
use testkit::{
    consume::{Broker, Topic},
    servers::{Kafka, RabbitMq},
};

use crate::stage::{Does, Stage, messages};

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_kafka_loses_and_doubles_no_effect() -> Result<()> {
    let mut server = Kafka::start().await?;
    let stage = Stage::with(Topic::create_on(Broker::Kafka, &server.bootstrap()).await?).await?;
    let before = messages(100, 5, "flaky");
    stage.topic.send(&before).await?;
    let consumer = stage.consume(&Does::work())?;
    stage.wait_for(20).await?;
    server.restart().await?;
    let after = messages(100, 5, "ok");
    stage.topic.send(&after).await?;
    stage.wait_for(before.len() + after.len()).await?;
    stage.assert_once_and_in_order(&[before, after].concat()).await?;
    consumer.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_rabbitmq_that_comes_back_loses_and_doubles_no_effect() -> Result<()> {
    let mut server = RabbitMq::start().await?;
    let stage = Stage::with(Topic::create_on(Broker::RabbitMq, &server.amqp_url()).await?).await?;
    let before = messages(100, 5, "flaky");
    stage.topic.send(&before).await?;
    let consumer = stage.consume(&Does::work())?;
    stage.wait_for(20).await?;
    server.kill()?;
    consumer.wait_for_metric("outbox_inbox_disconnects_total", "", 1.0).await?;
    server.restart().await?;
    let after = messages(100, 5, "ok");
    stage.topic.send(&after).await?;
    stage.wait_for(before.len() + after.len()).await?;
    stage.assert_once_and_in_order(&[before, after].concat()).await?;
    consumer.stop().await
}
