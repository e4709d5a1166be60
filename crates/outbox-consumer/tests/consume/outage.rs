//! The broker ends in the middle, or the database refuses: consumers wait for it, and go on.

use std::time::Duration;

use anyhow::{Context as _, Result};
use outbox_consumer::{Retry, rabbitmq};
use outbox_core::sqlx::mysql::MySqlPoolOptions;
use testkit::{
    accounts::Account,
    consume::{Broker, Sending, Topic},
    proxy::{Direction, Proxy},
    servers::{Kafka, KafkaCluster, RabbitMq},
};

use crate::stage::{Does, Running, Stage, messages};

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

/// It leads a third of the partitions, and keeps its connections.
#[tokio::test(flavor = "multi_thread")]
async fn the_messages_of_a_frozen_node_of_kafka_come_from_the_others() -> Result<()> {
    let mut cluster = KafkaCluster::start().await?;
    let stage = Stage::with(Topic::create_on(Broker::Kafka, &cluster.bootstrap()).await?).await?;
    let consumer = stage.consume(&Does::work())?;
    let mut sent = messages(100, 20, "ok");
    stage.topic.send(&sent).await?;
    stage.wait_for(sent.len()).await?;
    cluster.pause()?;
    cluster.led_by_others().await?;
    let more = messages(100, 20, "ok");
    stage.topic.send(&more).await?;
    sent.extend(more);
    stage.wait_for(sent.len()).await?;
    cluster.resume().await?;
    stage.assert_once_and_in_order(&sent).await?;
    consumer.stop_and(|it| assert!(it.labelled("outbox_inbox_broker_events_total", "event", "begun_anew") < 0.5)).await
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

/// An acknowledgement that is on its way when the connection ends must not hold its key for ever.
#[tokio::test(flavor = "multi_thread")]
async fn connections_to_rabbitmq_that_end_again_and_again_hold_up_no_key() -> Result<()> {
    let stage = Stage::new(Broker::RabbitMq).await?;
    let proxy = Proxy::start(stage.topic.address()).await?;
    let steps = 40;
    let step = 50;
    let sent = messages(steps * step, 5, "ok");
    stage.topic.send(&sent).await?;
    let consumer =
        rabbitmq::Consumer::new(proxy.address(), stage.topic.name(), stage.topic.name(), stage.pool.clone())?;
    let consumer = Stage::start_rabbitmq(consumer, &Does::work())?;
    for ended in 1..steps {
        stage.wait_for(ended * step).await?;
        proxy.reset();
    }
    stage.wait_for(sent.len()).await?;
    stage.assert_once_and_in_order(&sent).await?;
    consumer.stop().await
}

/// Three attempts each would be thirty.
#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_that_refuses_whatever_it_is_asked_makes_no_message_dead() -> Result<()> {
    let stage = Stage::new(Broker::RabbitMq).await?;
    stage.database.execute("RENAME TABLE inbox_processed TO inbox_away").await?;
    let sent = messages(10, 5, "ok");
    stage.topic.send(&sent).await?;
    let consumer = stage.consume(&Does::work())?;
    consumer.wait_for_metric("outbox_inbox_messages_total", "failed", 60.0).await?;
    stage.database.execute("RENAME TABLE inbox_away TO inbox_processed").await?;
    stage.wait_for(sent.len()).await?;
    stage.assert_once_and_in_order(&sent).await?;
    assert_eq!(stage.database.number("SELECT COUNT(*) FROM inbox_dead").await?, 0);
    consumer.stop().await
}

/// Statements arrive, replies do not: some messages are processed although nobody hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_vanishes_without_a_word_is_given_up_and_found_again() -> Result<()> {
    let mut stage = Stage::new(Broker::RabbitMq).await?;
    let proxy = Proxy::start(&stage.database.url_as(Account::Service)?).await?;
    stage.pool = MySqlPoolOptions::new().max_connections(12).connect(proxy.address()).await?;
    let sent = messages(3000, 5, "ok");
    stage.topic.send(&sent).await?;
    let consumer = Stage::start_rabbitmq(stage.rabbitmq()?.deadline(Duration::from_secs(1)), &Does::work())?;
    stage.wait_for(10).await?;
    proxy.black_hole(Direction::ToClient);
    consumer.wait_for_metric("outbox_inbox_messages_total", "failed", 10.0).await?;
    // What was cut stays so: only new connections are of use.
    proxy.reset();
    proxy.heal();
    stage.pool = MySqlPoolOptions::new().connect(&stage.database.url_as(Account::Service)?).await?;
    stage.wait_for(sent.len()).await?;
    stage.assert_once_and_in_order(&sent).await?;
    assert_eq!(stage.database.number("SELECT COUNT(*) FROM inbox_dead").await?, 0);
    consumer.stop().await
}

/// It has happened, and nobody has heard of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_reply_is_cut_counts_as_failed_and_then_as_a_duplicate() -> Result<()> {
    let mut stage = Stage::new(Broker::RabbitMq).await?;
    let proxy = Proxy::start(&stage.database.url_as(Account::Service)?).await?;
    stage.pool = MySqlPoolOptions::new().max_connections(12).connect(proxy.address()).await?;
    let consumer = stage.consume(&Does::work())?;
    let sent = messages(2, 2, "ok");
    // Its other transactions commit, too.
    stage.database.execute("RENAME TABLE inbox_retries TO away").await?;
    stage.topic.send(&sent[..1]).await?;
    consumer.wait_for_metric("outbox_inbox_messages_total", "first", 1.0).await?;
    proxy.cut_replies(1, |request| request.ends_with(b"COMMIT"));
    stage.topic.send(&sent[1..]).await?;
    consumer.wait_for_metric("outbox_inbox_messages_total", "duplicate", 1.0).await?;
    stage.assert_once_and_in_order(&sent).await?;
    let counted = |it: &Running| {
        let count = |result| it.metric("outbox_inbox_messages_total", result);
        let [first, failed, duplicate] = ["first", "failed", "duplicate"].map(count);
        let as_said = [first, failed, duplicate].iter().all(|count| (count - 1.0).abs() < 0.5);
        assert!(as_said, "{first} first, {failed} failed, {duplicate} duplicate");
    };
    consumer.stop_and(counted).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_never_ends_is_given_up_and_its_message_with_it() -> Result<()> {
    for broker in Broker::ALL {
        let stage = Stage::new(broker).await?;
        let sent = messages(3, 3, "ok");
        stage.topic.send(&sent).await?;
        let does = Does::wait();
        let limit = Duration::from_millis(200);
        let consumer = match broker {
            Broker::Kafka => Stage::start_kafka(stage.kafka()?.deadline(limit), &does)?,
            Broker::RabbitMq => Stage::start_rabbitmq(stage.rabbitmq()?.deadline(limit), &does)?,
        };
        stage.wait_for(sent.len()).await?;
        let dead =
            "SELECT COUNT(*) FROM inbox_dead WHERE attempts = 3 AND error = 'the handler took longer than 200ms'";
        assert_eq!(stage.database.number(dead).await?, 3, "{broker:?}");
        assert_eq!(stage.effects().await?.len(), 0, "{broker:?}");
        consumer.stop().await?;
    }
    Ok(())
}

/// The time-out of a queue is 30 minutes by default, and a wait of ten minutes or many attempts can be longer together.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_and_waits_go_on_when_rabbitmq_takes_a_message_back() -> Result<()> {
    let stage = Stage::with(Topic::create_impatient(500).await?).await?;
    let [fails, waits] = ["never", "after"].map(|payload| Sending::new(payload, payload));
    stage.topic.send(&[fails.clone(), waits.clone()]).await?;
    let does = Does::work();
    let wait = Duration::from_millis(1500);
    let consumer = stage.rabbitmq()?.retry(Retry::new(wait, wait, 3)).delivery_limit(0);
    let consumer = Stage::start_rabbitmq(consumer, &does)?;
    let message = fails.id.context("no id")?;
    consumer.wait_for_metric("outbox_inbox_disconnects_total", "", 2.0).await?;
    stage.wait_for(1).await?;
    let dead = "SELECT COUNT(*) FROM inbox_dead WHERE reason = 'attempts' AND attempts = 3";
    assert_eq!((stage.database.number(dead).await?, does.tries(message)), (1, 3));
    assert_eq!(does.tries(waits.id.context("no id")?), 1, "a message that waits for ten minutes is tried again");
    consumer.stop().await
}
