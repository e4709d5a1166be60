//! Sequenced keys: what is missing, late or repeated is seen, and the consumer's policy is followed.

use std::time::Duration;

use anyhow::Result;
use outbox_consumer::{SequencePolicy, retry_dead};
use testkit::consume::{Broker, Sending};

use crate::stage::{Does, Running, Stage, Work};

const SEEN: &str = "outbox_inbox_out_of_sequence_total";

/// Messages of one key with these numbers. Each fails once: what is tried again is told once all the same.
fn numbered(numbers: &[u64]) -> Vec<Sending> {
    let message = |number: &u64| {
        let headers = vec![("sequence".to_owned(), number.to_string())];
        Sending { headers, ..Sending::new("key", "flaky") }
    };
    numbers.iter().map(message).collect()
}

/// Sends messages with these numbers to a consumer with this policy, and waits until all are decided.
async fn consume(broker: Broker, policy: SequencePolicy, numbers: &[u64]) -> Result<(Stage, Vec<Sending>, Running)> {
    let stage = Stage::new(broker).await?;
    let sent = numbered(numbers);
    stage.topic.send(&sent).await?;
    let consumer = match broker {
        Broker::Kafka => Stage::start_kafka(stage.kafka()?.sequence(policy), &Does::work())?,
        Broker::RabbitMq => Stage::start_rabbitmq(stage.rabbitmq()?.sequence(policy), &Does::work())?,
    };
    stage.wait_for(sent.len()).await?;
    Ok((stage, sent, consumer))
}

/// The places in `sent` of the effects, in their order.
async fn places(stage: &Stage, sent: &[Sending]) -> Result<Vec<usize>> {
    let effects = stage.effects().await?;
    Ok(effects.iter().filter_map(|id| sent.iter().position(|it| it.id == Some(*id))).collect())
}

fn assert_seen(consumer: &Running, expected: [f64; 3]) {
    let seen = ["gap", "late", "repeated"].map(|seen| consumer.labelled(SEEN, "seen", seen));
    assert!(seen.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.1), "{seen:?} instead of {expected:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_accepts_processes_all_as_it_comes_and_tells() -> Result<()> {
    for broker in Broker::ALL {
        let (stage, sent, consumer) = consume(broker, SequencePolicy::Accept, &[1, 2, 4, 3, 5, 5]).await?;
        assert_eq!(places(&stage, &sent).await?, [0, 1, 2, 3, 4, 5]);
        consumer.stop_and(|it| assert_seen(it, [1.0, 1.0, 1.0])).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_waits_puts_the_messages_of_a_key_in_order() -> Result<()> {
    for broker in Broker::ALL {
        let policy = SequencePolicy::Wait(Duration::from_secs(60));
        let (stage, sent, consumer) = consume(broker, policy, &[1, 4, 3, 2, 5]).await?;
        assert_eq!(places(&stage, &sent).await?, [0, 3, 2, 1, 4], "1, 2, 3, 4, 5");
        consumer.stop_and(|it| assert_seen(it, [0.0, 0.0, 0.0])).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_waits_goes_on_without_what_never_comes() -> Result<()> {
    let policy = SequencePolicy::Wait(Duration::from_millis(300));
    let (stage, sent, consumer) = consume(Broker::Kafka, policy, &[1, 3, 4, 4]).await?;
    assert_eq!(places(&stage, &sent).await?, [0, 1, 2]);
    let reason = "SELECT COUNT(*) FROM inbox_dead WHERE reason = 'sequence'";
    assert_eq!(stage.database.number(reason).await?, 1, "the repeated number");
    consumer.stop_and(|it| assert_seen(it, [1.0, 0.0, 1.0])).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_refuses_keeps_what_follows_a_gap_as_dead() -> Result<()> {
    let (stage, sent, consumer) = consume(Broker::Kafka, SequencePolicy::Refuse, &[1, 2, 4, 5, 2, 3]).await?;
    assert_eq!(places(&stage, &sent).await?, [0, 1, 5]);
    let reason = "SELECT COUNT(*) FROM inbox_dead WHERE reason = 'sequence'";
    assert_eq!(stage.database.number(reason).await?, 3);
    consumer.stop_and(|it| assert_seen(it, [2.0, 0.0, 1.0])).await?;

    // Tried again by hand: then the key goes on behind them.
    let consumer = stage.topic.name();
    let handler = Work(Does::work());
    for processed_and_failed in [(0, 3), (3, 0)] {
        let retried = retry_dead(&stage.pool, consumer, &handler).await?;
        assert_eq!((retried.processed, retried.failed), processed_and_failed);
    }
    let next = numbered(&[6]);
    stage.topic.send(&next).await?;
    let consumer = Stage::start_kafka(stage.kafka()?.sequence(SequencePolicy::Refuse), &Does::work())?;
    stage.wait_for(sent.len() + 1).await?;
    assert_eq!(places(&stage, &next).await?, [0]);
    consumer.stop().await
}

/// As after a restore and `relay recover`: numbers come again in another epoch, and what is still on its way from the
/// old one is late.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_refuses_takes_numbers_again_in_a_new_epoch() -> Result<()> {
    let stage = Stage::new(Broker::Kafka).await?;
    let mut sent = numbered(&[1, 2, 3, 2, 3, 4, 4]);
    for sending in &mut sent[3..6] {
        sending.headers.push(("sequence-epoch".to_owned(), "1795000000".to_owned()));
    }
    stage.topic.send(&sent).await?;
    let consumer = Stage::start_kafka(stage.kafka()?.sequence(SequencePolicy::Refuse), &Does::work())?;
    stage.wait_for(sent.len()).await?;
    assert_eq!(places(&stage, &sent).await?, [0, 1, 2, 3, 4, 5, 6]);
    consumer.stop_and(|it| assert_seen(it, [0.0, 1.0, 0.0])).await
}
