//! The Kafka sink: the conformance suite against a real broker, and Kafka's own traps.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::kafka_harness::{KafkaHarness, add_partitions, consume, sink, sink_with};
use anyhow::{Context as _, Result, ensure};
use futures_util::future::join_all;
use outbox_relay::{
    settings,
    sink::{
        Destination, KeyOrder, Outcome, Outgoing, PublishError, Sink,
        conformance::{self, DEADLINE, Draft, Harness as _, publish_until_sent},
        kafka::Kafka,
    },
};
use rdkafka::{
    mocking::MockCluster,
    producer::DefaultProducerContext,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};
use testkit::{
    proxy::{Direction, Proxy},
    servers::{self, PATIENCE},
};

fn to(topic: &str) -> Arc<Destination> {
    Arc::new(Destination::new("kafka", topic, ""))
}

const TWO_HOURS_MICROS: i64 = 2 * 60 * 60 * 1_000_000;

fn micros_now() -> i64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX)
}

fn soon() -> Instant {
    Instant::now() + DEADLINE
}

fn numbered(topic: &Arc<Destination>, numbers: std::ops::Range<usize>, size: usize) -> Vec<Outgoing> {
    numbers.map(|n| Draft::new(topic, vec![b'x'; size]).key(n.to_string().as_bytes()).build()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_conforms() -> Result<()> {
    Ok(conformance::run(&KafkaHarness::start().await?).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wire_has_the_documented_headers_key_and_time() -> Result<()> {
    let harness = KafkaHarness::shared().await?;
    let topic = harness.destination().await?;
    let message =
        Draft::new(&topic, "{}").described("made", "application/json").header("b", "1").header("a", "2").build();
    let receipt = harness.sink().publish(std::slice::from_ref(&message), soon()).await.remove(0)?;
    let record = consume(harness.bootstrap(), &topic.target, 1)?.remove(0);
    let names: Vec<_> = record.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["id", "type", "content-type", "outbox-topic", "b", "a"]);
    assert_eq!(record.headers[0].1, message.message_id.to_string());
    assert_eq!(record.timestamp, Some(message.created_at_micros / 1000));
    assert_eq!(receipt.place, format!("{}/{}@{}", topic.target, record.partition, record.offset));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_go_to_the_partitions_of_java_clients() -> Result<()> {
    let harness = KafkaHarness::shared().await?;
    let topic = harness.destination().await?;
    // Kafka's own test has these hashes: murmur2 of "foobar" is -790332482, and so on; without the sign, modulo 4
    // partitions.
    for (key, partition) in [("21", 0), ("foobar", 2), ("a-little-bit-longer-string", 3)] {
        let message = Draft::new(&topic, "").key(key.as_bytes()).build();
        let receipt = harness.sink().publish(&[message], soon()).await.remove(0)?;
        assert!(receipt.place.starts_with(&format!("{}/{partition}@", topic.target)), "{key}: {}", receipt.place);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_compression_that_kafka_knows_is_built_in() -> Result<()> {
    let harness = KafkaHarness::shared().await?;
    let topic = harness.destination().await?;
    for codec in ["gzip", "snappy", "lz4", "zstd"] {
        let sink = sink_with(harness.bootstrap(), &[("compression.type", codec)]);
        let message = Draft::new(&topic, vec![b'x'; 1000]).build();
        sink.publish(&[message], soon()).await.remove(0).context(codec)?;
    }
    assert_eq!(harness.arrived(&topic, 4).await?.len(), 4);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn new_partitions_are_used_within_seconds() -> Result<()> {
    let harness = KafkaHarness::shared().await?;
    let topic = to(&format!("growing-{}", uuid::Uuid::now_v7()));
    servers::create_topic(harness.bootstrap(), &topic.target, 1).await?;
    publish_until_sent(harness.sink(), &numbered(&topic, 0..1, 1), DEADLINE).await?;
    add_partitions(harness.bootstrap(), &topic.target, 4).await?;
    let in_a_new_one = |outcomes: Vec<Outcome>| {
        let first = format!("{}/0@", topic.target);
        outcomes.iter().flatten().any(|receipt| !receipt.place.starts_with(&first))
    };
    servers::until(PATIENCE, "a message in a new partition", || async {
        let outcomes = harness.sink().publish(&numbered(&topic, 0..20, 1), soon()).await;
        ensure!(in_a_new_one(outcomes), "all are in the first partition");
        Ok(())
    })
    .await
}

/// The brokers are librdkafka's own. In both of them the topic has one partition, and the second one has no message of
/// this producer.
#[tokio::test(flavor = "multi_thread")]
async fn of_another_cluster_behind_the_same_address_nothing_is_known() -> Result<()> {
    let clusters = [MockCluster::new(1)?, MockCluster::new(1)?];
    clusters.iter().try_for_each(|cluster| cluster.create_topic("orders", 1, 1))?;
    let [first, second] = clusters;
    let proxy = Proxy::start(&first.bootstrap_servers()).await?;
    let sink = sink(proxy.address());
    let two = [(); 2].map(|()| Draft::new(&to("orders"), "").key(b"k").build());
    publish_until_sent(&sink, &two, DEADLINE).await?;
    assert_eq!(sink.key_order(&two[0]), KeyOrder::Pipelined);
    proxy.retarget(&second.bootstrap_servers())?;
    proxy.reset();
    drop(first);
    servers::until(PATIENCE, "the second cluster", || async {
        let outcomes = sink.publish(&two, soon()).await;
        ensure!(outcomes[0].is_ok(), "{outcomes:?}");
        assert!(matches!(outcomes[1], Err(PublishError::TurnedAway(_))), "{outcomes:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_refuses_its_own_messages_at_once_and_works_when_it_is_made() -> Result<()> {
    let harness = KafkaHarness::shared().await?;
    let there = harness.destination().await?;
    let missing = to(&format!("missing-{}", uuid::Uuid::now_v7()));
    let mut batch = numbered(&there, 0..100, 10);
    batch.insert(50, Draft::new(&missing, "1").build());
    for _ in 0..3 {
        let outcomes = harness.sink().publish(&batch, soon()).await;
        assert!(
            matches!(&outcomes[50], Err(PublishError::Unroutable { reason: "unroutable", .. })),
            "{:?}",
            outcomes[50]
        );
        assert_eq!(outcomes.iter().filter(|it| it.is_ok()).count(), 100);
    }
    servers::create_topic(harness.bootstrap(), &missing.target, 1).await?;
    let outcome = harness.sink().publish(&batch[50..51], soon()).await.remove(0);
    assert!(outcome.is_ok(), "{outcome:?}");
    Ok(())
}

/// One question per message would take longer than the deadline, and the last messages would get that no broker
/// answers.
#[tokio::test(flavor = "multi_thread")]
async fn missing_topics_that_take_turns_are_asked_for_once_a_batch() -> Result<()> {
    let harness = KafkaHarness::shared().await?;
    let missing = [(); 2].map(|()| to(&format!("missing-{}", uuid::Uuid::now_v7())));
    let batch: Vec<_> = missing.iter().cycle().take(50_000).map(|topic| Draft::new(topic, "1").build()).collect();
    let outcomes = harness.sink().publish(&batch, soon()).await;
    assert_eq!(outcomes.len(), batch.len());
    let other = outcomes.iter().find(|it| !matches!(it, Err(PublishError::Unroutable { reason: "unroutable", .. })));
    assert!(other.is_none(), "{other:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_deleted_harms_no_other() -> Result<()> {
    let harness = KafkaHarness::shared().await?;
    let there = harness.destination().await?;
    let gone = harness.destination().await?;
    harness.sink().publish(&numbered(&gone, 0..1, 1), soon()).await.remove(0)?;
    crate::kafka_harness::delete_topic(harness.bootstrap(), &gone.target).await?;
    let mut last = None;
    for _ in 0..4 {
        let outcomes =
            harness.sink().publish(&[numbered(&there, 0..50, 10), numbered(&gone, 0..1, 1)].concat(), soon()).await;
        assert!(outcomes[50].is_err());
        last = Some(outcomes);
    }
    let last = last.unwrap();
    assert!(matches!(&last[50], Err(PublishError::Unroutable { reason: "unroutable", .. })), "{:?}", last[50]);
    assert!(last[..50].iter().all(Result::is_ok), "{:?}", last[0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_message_that_is_too_large_for_the_topic_is_rejected() -> Result<()> {
    let harness = KafkaHarness::shared().await?;
    let topic = format!("small-{}", uuid::Uuid::now_v7());
    servers::create_topic_with(harness.bootstrap(), &topic, 1, &[("max.message.bytes", "10000")]).await?;
    let topic = to(&topic);
    let mut batch = numbered(&topic, 0..60, 1000);
    batch.insert(30, Draft::new(&topic, vec![b'x'; 20_000]).build());
    let outcomes = harness.sink().publish(&batch, soon()).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Err(PublishError::Rejected { reason: "too_large", .. }) => assert_eq!(n, 30),
            outcome => assert!(outcome.is_ok() && n != 30, "{n}: {outcome:?}"),
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_many_small_batches_are_not_rejected_for_the_size_of_their_common_request() -> Result<()> {
    let harness = KafkaHarness::shared().await?;
    let topic = format!("small-{}", uuid::Uuid::now_v7());
    servers::create_topic_with(harness.bootstrap(), &topic, 1, &[("max.message.bytes", "10000")]).await?;
    let messages = numbered(&to(&topic), 0..100, 1000);
    let outcomes = join_all(messages.chunks(1).map(|one| harness.sink().publish(one, soon()))).await.concat();
    let failed: Vec<_> = outcomes.iter().filter(|it| it.is_err()).collect();
    assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), failed.first());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_record_that_a_compacted_topic_refuses_is_rejected() -> Result<()> {
    let harness = KafkaHarness::shared().await?;
    let topic = format!("compacted-{}", uuid::Uuid::now_v7());
    servers::create_topic_with(harness.bootstrap(), &topic, 1, &[("cleanup.policy", "compact")]).await?;
    let topic = to(&topic);
    let mut batch = numbered(&topic, 0..40, 10);
    batch.insert(20, Draft::new(&topic, "without key").build());
    let outcomes = harness.sink().publish(&batch, soon()).await;
    assert!(matches!(&outcomes[20], Err(PublishError::Rejected { reason: "invalid", .. })), "{:?}", outcomes[20]);
    assert_eq!(outcomes.iter().filter(|it| it.is_ok()).count(), 40, "{:?}", outcomes[0]);
    Ok(())
}

/// A message that was scheduled long ago, for a topic that takes nothing so old.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_record_that_is_too_old_for_its_topic_is_rejected() -> Result<()> {
    let harness = KafkaHarness::shared().await?;
    let topic = format!("young-{}", uuid::Uuid::now_v7());
    let settings = [("message.timestamp.before.max.ms", "3600000")];
    servers::create_topic_with(harness.bootstrap(), &topic, 1, &settings).await?;
    let mut batch = numbered(&to(&topic), 0..41, 10);
    for message in &mut batch {
        message.created_at_micros = micros_now();
    }
    batch[20].created_at_micros -= TWO_HOURS_MICROS;
    let outcomes = harness.sink().publish(&batch, soon()).await;
    assert!(matches!(&outcomes[20], Err(PublishError::Rejected { reason: "invalid", .. })), "{:?}", outcomes[20]);
    assert_eq!(outcomes.iter().filter(|it| it.is_ok()).count(), 40, "{:?}", outcomes[0]);
    Ok(())
}

/// Kafka refuses a time more than an hour ahead of its own (`message.timestamp.after.max.ms`).
#[tokio::test(flavor = "multi_thread")]
async fn a_message_from_a_database_whose_clock_is_ahead_has_the_time_of_the_relay() -> Result<()> {
    let harness = KafkaHarness::shared().await?;
    let topic = format!("ahead-{}", uuid::Uuid::now_v7());
    servers::create_topic(harness.bootstrap(), &topic, 1).await?;
    let mut message = Draft::new(&to(&topic), "from the future").build();
    let before = micros_now() / 1000;
    message.created_at_micros = micros_now() + TWO_HOURS_MICROS;
    harness.sink().publish(&[message], soon()).await.remove(0)?;
    let records = consume(harness.bootstrap(), &topic, 1)?;
    let written = records[0].timestamp.context("a record without a time")?;
    assert!((before..=micros_now() / 1000).contains(&written), "{before} {written}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_hangs_loses_nothing_confirms_nothing_and_keeps_the_order() -> Result<()> {
    let broker = servers::Kafka::start().await?;
    servers::create_topic(&broker.bootstrap(), "orders", 1).await?;
    let topic = to("orders");
    let sink = sink(&broker.bootstrap());
    sink.publish(&numbered(&topic, 0..1, 1), soon()).await.remove(0)?;
    broker.pause()?;
    let messages: Vec<_> = (0..300).map(|n: usize| Draft::new(&topic, n.to_string()).key(b"one").build()).collect();
    let deadline = Instant::now() + Duration::from_secs(3);
    let first = sink.publish(&messages[..100], deadline);
    let second = sink.publish(&messages[100..200], deadline + Duration::from_secs(6));
    let (first, second) = tokio::join!(first, second);
    assert!(first.iter().all(|it| matches!(it, Err(PublishError::Unconfirmed(_)))), "{:?}", first[0]);
    assert!(
        second.iter().all(|it| matches!(it, Err(PublishError::Unconfirmed(_)))),
        "given up with the first: {:?}",
        second[0]
    );
    assert!(Instant::now() < deadline + Duration::from_secs(5), "waited for the second");
    let third = sink.publish(&messages[200..], soon()).await;
    assert!(third.iter().all(|it| matches!(it, Err(PublishError::Unavailable(_)))), "costs no attempt: {:?}", third[0]);
    broker.resume()?;
    publish_until_sent(&sink, &messages, PATIENCE).await?;
    crate::kafka_harness::in_first_order(&consume(&broker.bootstrap(), "orders", 301)?, 300);
    Ok(())
}

/// The second batch waits for the brokers' answer about its topic while the first one fails. It must not go out after
/// that.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_waits_for_an_answer_does_not_overtake_one_that_failed_meanwhile() -> Result<()> {
    let broker = servers::Kafka::start().await?;
    let proxy = broker.proxy().await?;
    servers::create_topic(&broker.bootstrap(), "orders", 1).await?;
    let topic = to("orders");
    let sink = sink(proxy.address());
    sink.publish(&numbered(&topic, 0..1, 1), soon()).await.remove(0)?;
    for direction in Direction::BOTH {
        proxy.black_hole(direction);
    }
    let messages: Vec<_> = (0..2).map(|n: usize| Draft::new(&topic, n.to_string()).key(b"one").build()).collect();
    let deadline = Instant::now() + Duration::from_secs(6);
    let held = proxy.counts().held;
    let first = async {
        let outcomes = sink.publish(&messages[..1], deadline).await;
        proxy.heal();
        outcomes
    };
    let second = async {
        servers::until(DEADLINE, "the first batch to be on the way", || async {
            anyhow::ensure!(proxy.counts().held > held);
            Ok(())
        })
        .await?;
        // Every connection is lost, so the topic is asked for again.
        proxy.reset();
        tokio::time::sleep(Duration::from_millis(500)).await;
        anyhow::Ok(sink.publish(&messages[1..], deadline + DEADLINE).await)
    };
    let (mut first, second) = tokio::join!(first, second);
    assert!(matches!(first.remove(0), Err(PublishError::Unconfirmed(_))));
    let second = second?.remove(0);
    let went_out = matches!(second, Ok(_) | Err(PublishError::Unconfirmed(_)));
    assert!(!went_out, "{second:?}");
    publish_until_sent(&sink, &messages, DEADLINE).await?;
    crate::kafka_harness::in_first_order(&consume(&broker.bootstrap(), "orders", 3)?, 2);
    Ok(())
}

/// A relay that was suspended gives its messages up long after their deadline, all together. librdkafka must not give
/// one up alone before. The times are the subject: with a time-out of three seconds the first message would be given up
/// while the broker is away, and the second one would be sent after that.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_given_up_late_is_not_overtaken() -> Result<()> {
    let broker = servers::Kafka::start().await?;
    let proxy = broker.proxy().await?;
    servers::create_topic(&broker.bootstrap(), "orders", 1).await?;
    let topic = to("orders");
    let sink = sink(proxy.address());
    let messages: Vec<_> = (0..3).map(|n: usize| Draft::new(&topic, n.to_string()).key(b"one").build()).collect();
    sink.publish(&messages[..1], soon()).await.remove(0)?;
    assert_eq!(sink.key_order(&messages[1]), KeyOrder::Pipelined);
    for direction in Direction::BOTH {
        proxy.black_hole(direction);
    }
    let deadline = Instant::now() + DEADLINE;
    let second = async {
        tokio::time::sleep(Duration::from_millis(2900)).await;
        sink.publish(&messages[2..], deadline).await
    };
    let heal = async {
        tokio::time::sleep(Duration::from_millis(5500)).await;
        proxy.heal();
    };
    let (first, second, ()) = tokio::join!(sink.publish(&messages[1..2], deadline), second, heal);
    assert!(first[0].is_ok() || second[0].is_err(), "{first:?} {second:?}");
    publish_until_sent(&sink, &messages, DEADLINE).await?;
    crate::kafka_harness::in_first_order(&consume(&broker.bootstrap(), "orders", 3)?, 3);
    Ok(())
}

/// librdkafka refuses the first message at once, and reports nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_message_that_is_too_large_holds_up_no_later_one_of_its_key() -> Result<()> {
    let harness = KafkaHarness::shared().await?;
    let topic = harness.destination().await?;
    let batch = [1_100_000, 1, 1].map(|size| Draft::new(&topic, vec![b'x'; size]).key(b"one").build());
    let outcomes = conformance::publish(harness.sink(), &batch).await;
    assert!(matches!(outcomes[0], Err(PublishError::Rejected { reason: "too_large", .. })), "{:?}", outcomes[0]);
    assert!(outcomes[1..].iter().all(Result::is_ok), "{outcomes:?}");
    Ok(())
}

/// Makes a broker that refuses the first request for a moment and takes the second. A real one does so while the leader
/// of a partition moves that has nothing of this producer, but not on demand. This one is librdkafka's own.
fn broker_of_which_the_leader_moves() -> Result<MockCluster<'static, DefaultProducerContext>> {
    let broker = MockCluster::new(1)?;
    broker.create_topic("orders", 1, 1)?;
    // Both requests are in flight before the first answer.
    broker.broker_round_trip_time(1, Duration::from_millis(200))?;
    broker.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION]);
    Ok(broker)
}

/// librdkafka reports the first message as sent as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_not_confirmed_by_a_later_one() -> Result<()> {
    let broker = broker_of_which_the_leader_moves()?;
    let sink = sink_with(&broker.bootstrap_servers(), &[("batch.num.messages", "1")]);
    let messages = ["0", "1"].map(|n| Draft::new(&to("orders"), n).build());
    let outcomes = sink.publish(&messages, soon()).await;
    assert!(matches!(&outcomes[0], Err(PublishError::Unconfirmed(_))), "{:?}", outcomes[0]);
    let place = outcomes[1].clone()?.place;
    assert_eq!(place, "orders/0@0", "the first one is not there");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_keeps_its_order_from_its_first_message_on() -> Result<()> {
    let broker = broker_of_which_the_leader_moves()?;
    let sink = sink_with(&broker.bootstrap_servers(), &[("batch.num.messages", "1")]);
    let messages: Vec<_> =
        (0..20).map(|n: usize| Draft::new(&to("orders"), n.to_string()).key(b"one").build()).collect();
    let outcomes = conformance::publish(&sink, &messages).await;
    let failed = outcomes.iter().find(|it| it.is_err());
    assert!(failed.is_none(), "{failed:?}");
    crate::kafka_harness::in_first_order(&consume(&broker.bootstrap_servers(), "orders", 20)?, 20);
    Ok(())
}

/// The partition has nothing of this producer. So only the second message of its key must wait until the first is
/// confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_without_leader_holds_up_its_own_keys_only() -> Result<()> {
    let broker = MockCluster::new(1)?;
    broker.create_topic("orders", 4, 1)?;
    broker.partition_leader("orders", 0, None)?;
    let topic = to("orders");
    let sink = sink(&broker.bootstrap_servers());
    // The first key belongs to partition 0, the other one to 2.
    let [without, with] = ["21", "foobar"].map(|key| Draft::new(&topic, "1").key(key.as_bytes()).build());
    let deadline = Instant::now() + Duration::from_secs(4);
    let without = [without.clone(), without];
    let with = [with.clone(), with.clone(), with];
    let (first, others) = tokio::join!(sink.publish(&without[..1], deadline), async {
        let others = conformance::publish(&sink, &with).await;
        (others, sink.publish(&without[1..], deadline).await)
    });
    assert!(matches!(first[..], [Err(PublishError::Unconfirmed(_))]), "{first:?}");
    let (others, second) = others;
    assert!(others.iter().all(Result::is_ok), "{others:?}");
    assert!(matches!(second[..], [Err(PublishError::TurnedAway(_))]), "{second:?}");
    Ok(())
}

/// The silent topic has no leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_confirms_nothing_costs_the_others_nothing() -> Result<()> {
    let broker = MockCluster::new(1)?;
    broker.create_topic("there", 4, 1)?;
    broker.create_topic("silent", 1, 1)?;
    broker.partition_leader("silent", 0, None)?;
    // Long enough that some messages are in flight at any moment.
    broker.broker_round_trip_time(1, Duration::from_millis(20))?;
    let there = to("there");
    let silent = to("silent");
    let sink = sink(&broker.bootstrap_servers());
    conformance::publish(&sink, &numbered(&there, 0..100, 10)).await;
    let messages: Vec<_> = (0..3).map(|n: usize| Draft::new(&silent, n.to_string()).key(b"one").build()).collect();
    let deadline = Instant::now() + Duration::from_secs(4);
    let ended = std::sync::atomic::AtomicBool::new(false);
    let lane = async {
        let mut outcomes = Vec::new();
        while !ended.load(std::sync::atomic::Ordering::Relaxed) {
            outcomes.extend(sink.publish(&numbered(&there, 0..10, 10), soon()).await);
        }
        outcomes
    };
    let first = async {
        let first = sink.publish(&messages[..1], deadline).await;
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        first
    };
    let (first, outcomes, more) = tokio::join!(first, lane, sink.publish(&messages[1..2], deadline));
    assert!(matches!(first[..], [Err(PublishError::Unconfirmed(_))]), "{first:?}");
    assert!(matches!(more[..], [Err(PublishError::TurnedAway(_))]), "{more:?}");
    let failed: Vec<_> = outcomes.iter().filter(|it| it.is_err()).collect();
    assert!(failed.is_empty(), "{} of {} failed: {:?}", failed.len(), outcomes.len(), failed.first());
    broker.partition_leader("silent", 0, Some(1))?;
    publish_until_sent(&sink, &messages, PATIENCE).await?;
    crate::kafka_harness::in_first_order(&consume(&broker.bootstrap_servers(), "silent", 3)?, 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn weakened_properties_and_unknown_ones_are_refused_without_their_values() {
    for (name, value) in [("acks", "S3CRET"), ("no.such.property", "S3CRET"), ("linger.ms", "S3CRET")] {
        let mut config = settings::KafkaConfig::new("127.0.0.1:1");
        config.properties.insert(name.to_owned(), settings::Secret::new(value));
        let Err(error) = Kafka::new("k", &config) else { panic!("{name} was taken") };
        assert!(error.to_string().contains(name) && !error.to_string().contains("S3CRET"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_local_queue_is_waited_for() -> Result<()> {
    let harness = KafkaHarness::shared().await?;
    let topic = harness.destination().await?;
    let sink = sink_with(harness.bootstrap(), &[("queue.buffering.max.messages", "50")]);
    let outcomes = sink.publish(&numbered(&topic, 0..2000, 10), soon()).await;
    let failed: Vec<_> = outcomes.iter().filter(|it| it.is_err()).collect();
    assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), failed.first());
    Ok(())
}
