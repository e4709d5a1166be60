//! The throughput of the broker's client alone: the relay's own sink, fed from memory.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures_util::{StreamExt as _, stream};
use hdrhistogram::Histogram;
use outbox_relay::{
    settings,
    sink::{Destination, Outgoing, Sink, conformance::Draft, kafka::Kafka, rabbitmq::RabbitMq},
};
use testkit::consume::Topic;
use tokio::task::JoinSet;

use crate::{
    Broker, Common,
    drain::precise,
    latency::{due, micros},
    listen::{Arrivals, first_arrivals, listen, wait_for},
    setup::{key, payload},
};

/// Messages of a batch, as many as the relay claims on Kafka.
const BATCH: u64 = 1000;

/// The limit of a publish: longer than any worth measuring.
const DEADLINE: Duration = Duration::from_secs(60);

/// The sink, the messages of a batch and the number of concurrent batches, as in the relay.
type Fed = (Arc<dyn Sink>, u64, usize);

async fn open(common: &Common, topic: &Topic) -> Result<Fed> {
    let fed: Fed = match common.broker {
        Broker::Kafka => {
            let config = settings::KafkaConfig::new(topic.address());
            (Arc::new(Kafka::new("bench", &config)?), BATCH, 6)
        }
        Broker::Rabbitmq => {
            let config = settings::RabbitMqConfig::new(topic.address());
            (Arc::new(RabbitMq::new("bench", &config)?), 512, 4)
        }
    };
    fed.0.check(Instant::now() + DEADLINE).await?;
    Ok(fed)
}

/// Messages per second from memory to the broker.
pub(crate) async fn broker(common: &Common, messages: u64) -> Result<f64> {
    let topic = Topic::create(common.broker.into()).await?;
    let (sink, batch, at_once) = open(common, &topic).await?;
    let destination = Arc::new(destination(common.broker, &topic));
    let started = Instant::now();
    let batches = stream::iter((0..messages).step_by(usize::try_from(batch)?));
    let sent = batches.map(|first| {
        let sink = Arc::clone(&sink);
        let outgoing = outgoing(common, &destination, first..messages.min(first + batch));
        async move { sink.publish(&outgoing, Instant::now() + DEADLINE).await.into_iter().flatten().count() }
    });
    let sent: usize = sent.buffered(at_once).fold(0, |sum, count| async move { sum + count }).await;
    let took = started.elapsed().as_secs_f64();
    ensure!(sent as u64 == messages, "the broker confirmed {sent} of {messages} messages");
    sink.close().await;
    topic.remove().await?;
    Ok(precise(messages) / took)
}

/// Latency from memory to the consumer, at a rate: the broker's share of a latency.
pub(crate) async fn latency(common: &Common, rate: u32, seconds: u32) -> Result<Histogram<u64>> {
    let topic = Topic::create(common.broker.into()).await?;
    let arrivals = Arrivals::default();
    let listener = listen(&topic, &[topic.name().to_owned()], Arc::clone(&arrivals)).await?;
    let (sink, ..) = open(common, &topic).await?;
    let destination = Arc::new(destination(common.broker, &topic));
    let start = Instant::now();
    let messages = u64::from(rate) * u64::from(seconds);
    let mut publishing = JoinSet::new();
    for number in 0..messages {
        let sink = Arc::clone(&sink);
        let outgoing = outgoing(common, &destination, number..number + 1);
        tokio::time::sleep_until(due(start, number, rate).into()).await;
        publishing.spawn(async move {
            let began = Instant::now();
            let sent = sink.publish(&outgoing, began + DEADLINE).await.into_iter().all(|outcome| outcome.is_ok());
            (number, began, sent)
        });
    }
    let published = publishing.join_all().await;
    ensure!(published.iter().all(|(.., sent)| *sent), "the broker did not confirm all messages");
    wait_for(&arrivals, messages).await;
    listener.abort();
    sink.close().await;
    let arrived = first_arrivals(&arrivals.lock().await);
    let mut latencies = Histogram::new(3)?;
    for (number, began, _) in published {
        let at = arrived.get(&number).copied().unwrap_or(began);
        latencies.record(micros(at.saturating_duration_since(began)))?;
    }
    topic.remove().await?;
    Ok(latencies)
}

fn destination(broker: Broker, topic: &Topic) -> Destination {
    let routing_key = if broker == Broker::Rabbitmq { topic.name().to_owned() } else { String::new() };
    Destination::new("bench", topic.name(), routing_key)
}

fn outgoing(common: &Common, destination: &Arc<Destination>, numbers: std::ops::Range<u64>) -> Vec<Outgoing> {
    let one = |number: u64| {
        let key = format!("key-{}", key(number, common.keys));
        let mut message = Draft::new(destination, payload(number, common.bytes)).key(key.as_bytes()).build();
        // No message waits for another.
        message.key_hash = number + 1;
        message
    };
    numbers.map(one).collect()
}
