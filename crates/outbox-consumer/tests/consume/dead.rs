//! A message that cannot be processed ends as dead, with all its bytes, and stops nobody else.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use outbox_consumer::{
    Retry,
    outbox_core::sqlx::{self, Executor as _},
    retry_dead,
};
use rdkafka::{
    mocking::MockCluster,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};
use testkit::{
    consume::{Broker, Sending, Topic},
    database::Database,
    servers::{Flavor, MySql, until},
};

use crate::stage::{Does, PATIENCE, RETRY, Stage, Work, messages};

/// The smallest `max_allowed_packet` that a default of MySQL or MariaDB ever had.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_message_that_is_too_large_for_the_database_stops_nobody() -> Result<()> {
    let server = MySql::start(Flavor::MySql).await?;
    let database = Database::create_on(&server.url()).await?;
    database.connect_as_admin().await?.execute("SET GLOBAL max_allowed_packet = 1048576").await?;
    let stage = Stage::on(database, Topic::create(Broker::RabbitMq).await?).await?;
    let large = Sending::new("key 1", format!("refuse{}", " ".repeat(3 << 20)));
    let healthy = messages(20, 2, "ok");
    stage.topic.send(&[&[large], &*healthy].concat()).await?;
    let does = Does::work();
    let consumer = stage.consume(&does)?;
    stage.wait_for(21).await?;
    stage.assert_once_and_in_order(&healthy).await?;
    let sql = "SELECT reason, payload IS NULL, error FROM inbox_dead";
    let (reason, is_gone, error): (String, bool, String) = sqlx::query_as(sql).fetch_one(&stage.pool).await?;
    assert_eq!((reason.as_str(), is_gone), ("too_large", true));
    assert!(error.starts_with("refused, and not kept: max_allowed_packet is 1048576 bytes. "), "{error}");
    consumer.stop().await?;
    let retried = retry_dead(&stage.pool, stage.topic.name(), &Work(does)).await?;
    assert_eq!((retried.processed, retried.failed), (0, 0), "a message without its payload is given to no handler");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_is_kept_as_dead_and_its_neighbours_go_on() -> Result<()> {
    for broker in Broker::ALL {
        let stage = Stage::new(broker).await?;
        let (mut poison, healthy) =
            (["never", "refuse", "json"].map(|it| Sending::new("key 1", it)), messages(60, 3, "ok"));
        poison[0].headers.push(("trace".to_owned(), "t1".to_owned()));
        let anonymous = Sending { id: None, ..Sending::new("key 2", "ok") };
        let all: Vec<_> = poison.iter().chain([&anonymous]).chain(&healthy).cloned().collect();
        stage.topic.send(&all).await?;
        let does = Does::work();
        let consumer = stage.consume(&does)?;
        stage.wait_for(all.len()).await?;
        stage.assert_once_and_in_order(&healthy).await?;
        let sql = "SELECT CAST(payload AS CHAR), reason, attempts, CAST(message_key AS CHAR), COALESCE(headers, '') \
                   FROM inbox_dead ORDER BY payload";
        let dead: Vec<(String, String, u32, String, String)> = sqlx::query_as(sql).fetch_all(&stage.pool).await?;
        let dead: Vec<_> =
            dead.iter().map(|it| (it.0.as_str(), it.1.as_str(), it.2, it.3.as_str(), it.4.as_str())).collect();
        let expected = [
            ("json", "refused", 1, "key 1", ""),
            ("never", "attempts", 3, "key 1", r#"{"trace":"t1"}"#),
            ("ok", "refused", 1, "key 2", ""),
            ("refuse", "refused", 1, "key 1", ""),
        ];
        assert_eq!(dead, expected, "{broker:?}");
        // It is dead for good: a redelivery is a duplicate.
        stage.topic.send(&poison).await?;
        consumer.wait_for_metric("outbox_inbox_messages_total", "duplicate", 3.0).await?;
        assert_eq!(does.tries(poison[0].id.unwrap()), 3);
        consumer.stop().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_messages_are_tried_again_by_hand() -> Result<()> {
    let stage = Stage::new(Broker::Kafka).await?;
    let poison = ["never", "flaky", "leave"].map(|it| Sending::new("key", it));
    stage.topic.send(&poison).await?;
    let once = Retry::new(RETRY.base, RETRY.max, 1);
    let does = Does::work();
    let consumer = Stage::start_kafka(stage.kafka()?.retry(once), &does)?;
    stage.wait_for(3).await?;
    consumer.stop().await?;
    assert_eq!(
        stage.effects().await?,
        Vec::from_iter(poison[2].id),
        "the flaky one and the one that never works are dead"
    );
    let retried = retry_dead(&stage.pool, stage.topic.name(), &Work(does)).await?;
    assert_eq!((retried.processed, retried.failed), (1, 1));
    assert_eq!(stage.effects().await?.last().copied(), poison[1].id);
    assert_eq!(stage.database.number("SELECT COUNT(*) FROM inbox_dead").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_goes_to_the_dead_letter_topic() -> Result<()> {
    let stage = Stage::new(Broker::Kafka).await?;
    let mut graves = Topic::create(Broker::Kafka).await?;
    let poison = Sending::new("key 1", "never");
    let healthy = messages(20, 2, "ok");
    stage.topic.send(&[std::slice::from_ref(&poison), &healthy].concat()).await?;
    let consumer = Stage::start_kafka(stage.kafka()?.dead_letter_topic(graves.name()), &Does::work())?;
    stage.wait_for(healthy.len()).await?;
    stage.assert_once_and_in_order(&healthy).await?;
    consumer.wait_for_metric("outbox_inbox_messages_total", "dead", 1.0).await?;
    until(PATIENCE, "the dead letter", || async {
        let sent = Topic::of_kafka(graves.address(), graves.name()).read().await?.len();
        ensure!(sent > 0);
        Ok(())
    })
    .await?;
    consumer.stop().await?;
    let dead = graves.read().await?;
    assert_eq!(dead.len(), 1);
    assert_eq!((Some(dead[0].id), dead[0].payload.as_deref()), (poison.id, Some(b"never".as_slice())));
    assert_eq!(dead[0].key.as_deref(), Some(b"key 1".as_slice()));
    let header = |name: &str| dead[0].headers.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str());
    assert_eq!(header("x-dead-letter-reason"), Some("attempts"));
    assert_eq!(header("x-dead-letter-attempts"), Some("3"));
    assert_eq!(header("x-dead-letter-topic"), Some(stage.topic.name()));
    // Its offset is committed: another member does not see it again.
    let next = Stage::start_kafka(stage.kafka()?.dead_letter_topic(graves.name()), &Does::work())?;
    let more = messages(4, 2, "ok");
    stage.topic.send(&more).await?;
    stage.wait_for(healthy.len() + more.len()).await?;
    assert!(next.metric("outbox_inbox_messages_total", "dead") < 0.5);
    next.stop().await
}

/// The broker, librdkafka's own, refuses the first of two that are on their way and takes the second, from which
/// librdkafka concludes that it has the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_not_confirmed_by_a_later_one() -> Result<()> {
    let broker = MockCluster::new(1)?;
    let topic = |name| Topic::of_kafka(&broker.bootstrap_servers(), name);
    for name in ["work", "graves"] {
        broker.create_topic(name, 1, 1)?;
    }
    let stage = Stage::with(topic("work")).await?;
    let poison = ["key 1", "key 2"].map(|key| Sending::new(key, "refuse"));
    stage.topic.send(&poison).await?;
    broker.broker_round_trip_time(1, Duration::from_millis(200))?;
    broker.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION]);
    let consumer = stage.kafka()?.dead_letter_topic("graves").property("batch.num.messages", "1");
    let consumer = Stage::start_kafka(consumer, &Does::work())?;
    let expected: HashSet<_> = poison.iter().filter_map(|it| it.id).collect();
    until(PATIENCE, "both", || async {
        let dead: HashSet<_> = topic("graves").read().await?.iter().map(|it| it.id).collect();
        ensure!(dead == expected, "{dead:?}");
        Ok(())
    })
    .await?;
    consumer.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_goes_to_the_dead_letter_exchange() -> Result<()> {
    let mut graves = Topic::create(Broker::RabbitMq).await?;
    let stage = Stage::with(Topic::create_with_graves(&graves).await?).await?;
    let poison = Sending::new("key 1", "refuse");
    let healthy = messages(20, 2, "ok");
    stage.topic.send(&[std::slice::from_ref(&poison), &healthy].concat()).await?;
    let consumer = Stage::start_rabbitmq(stage.rabbitmq()?.dead_letter_exchange(), &Does::work())?;
    stage.wait_for(healthy.len()).await?;
    stage.assert_once_and_in_order(&healthy).await?;
    consumer.wait_for_metric("outbox_inbox_messages_total", "dead", 1.0).await?;
    consumer.stop().await?;
    let start = Instant::now();
    while graves.read().await?.is_empty() {
        anyhow::ensure!(start.elapsed() < PATIENCE, "the dead-letter queue stays empty");
    }
    let dead: Vec<_> = graves.read().await?.iter().map(|dead| Some(dead.id)).collect();
    assert_eq!(dead, [poison.id]);
    Ok(())
}

/// In the table it would be marked as processed, and the second delivery a duplicate.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_comes_again_has_another_dead_letter() -> Result<()> {
    let mut graves = Topic::create(Broker::RabbitMq).await?;
    let stage = Stage::with(Topic::create_with_graves(&graves).await?).await?;
    let poison = Sending::new("key 1", "refuse");
    stage.topic.send(&[poison.clone(), poison]).await?;
    let consumer = Stage::start_rabbitmq(stage.rabbitmq()?.dead_letter_exchange(), &Does::work())?;
    consumer.wait_for_metric("outbox_inbox_messages_total", "dead", 2.0).await?;
    consumer.stop().await?;
    let start = Instant::now();
    while graves.read().await?.len() < 2 {
        ensure!(start.elapsed() < PATIENCE, "there is no second dead letter");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_message_of_a_queue_without_dead_letter_exchange_is_dropped() -> Result<()> {
    let mut stage = Stage::new(Broker::RabbitMq).await?;
    stage.topic.send(&[Sending::new("key 1", "refuse")]).await?;
    let consumer = Stage::start_rabbitmq(stage.rabbitmq()?.dead_letter_exchange(), &Does::work())?;
    consumer.wait_for_metric("outbox_inbox_messages_total", "dead", 1.0).await?;
    consumer.stop().await?;
    assert!(stage.topic.read().await?.is_empty(), "it is still in the queue");
    let kept = "SELECT (SELECT COUNT(*) FROM inbox_dead) + (SELECT COUNT(*) FROM inbox_processed)";
    assert_eq!(stage.database.number(kept).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_kept_for_longer_than_the_inbox_remembers_is_told() -> Result<()> {
    let stage = Stage::new(Broker::Kafka).await?;
    let day = Duration::from_secs(86_400);
    // Kafka keeps messages for seven days unless told otherwise.
    for (kept, short) in [(day, 1.0), (7 * day, 0.0), (Duration::ZERO, 0.0)] {
        let consumer = Stage::start_kafka(stage.kafka()?.inbox_retention(kept), &Does::work())?;
        let told = until(PATIENCE, "the metric", || async {
            anyhow::ensure!(consumer.has("outbox_inbox_window_too_short"), "it was not looked at yet");
            Ok(consumer.metric("outbox_inbox_window_too_short", ""))
        });
        let told = told.await?;
        assert!((told - short).abs() < 0.1, "{kept:?}: {told}");
        consumer.stop().await?;
    }
    Ok(())
}

/// Kafka says when it was enqueued. It is processed all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_older_than_the_inbox_remembers_is_late() -> Result<()> {
    let stage = Stage::new(Broker::Kafka).await?;
    let day = Duration::from_secs(86_400);
    for (sent, (kept, late)) in (1..).zip([(Duration::from_nanos(1), 1.0), (day, 0.0), (Duration::ZERO, 0.0)]) {
        stage.topic.send(&messages(1, 1, "ok")).await?;
        let consumer = Stage::start_kafka(stage.kafka()?.inbox_retention(kept), &Does::work())?;
        stage.wait_for(sent).await?;
        let told = consumer.metric("outbox_inbox_messages_total", "late");
        assert!((told - late).abs() < 0.1, "{kept:?}: {told}");
        consumer.stop().await?;
    }
    Ok(())
}
