//! What the broker's client can do alone: the relay's own sink, fed from memory.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures_util::{StreamExt as _, stream};
use outbox_core::Uuid;
use outbox_relay::{
    config,
    sink::{Destination, Outgoing, Sink, kafka::Kafka, rabbitmq::RabbitMq},
};
use testkit::consume::Topic;

use crate::{Broker, Common, drain::precise};

/// Messages of a batch, as the relay claims them on Kafka.
const BATCH: u64 = 1000;

/// Messages per second from memory to the broker.
pub(crate) async fn broker(common: &Common, messages: u64) -> Result<f64> {
    let topic = Topic::create(common.broker.into()).await?;
    let deadline = Duration::from_secs(60);
    let (sink, batch, at_once): (Arc<dyn Sink>, u64, usize) = match common.broker {
        Broker::Kafka => {
            let config = config::Kafka { brokers: topic.address().to_owned(), properties: BTreeMap::new() };
            (Arc::new(Kafka::new("bench", &config, deadline)?), BATCH, 6)
        }
        Broker::Rabbitmq => {
            let url = config::Secret(topic.address().to_owned());
            let config = config::RabbitMq { url, channels: 4, window: 512 };
            (Arc::new(RabbitMq::new("bench", &config)?), 512, 4)
        }
    };
    sink.check(Instant::now() + deadline).await?;
    let destination = Arc::new(destination(common.broker, &topic));
    let started = Instant::now();
    let batches = stream::iter((0..messages).step_by(usize::try_from(batch)?));
    let sent = batches.map(|first| {
        let (sink, outgoing) = (Arc::clone(&sink), outgoing(common, &destination, first..messages.min(first + batch)));
        async move { sink.publish(&outgoing, Instant::now() + deadline).await.into_iter().flatten().count() }
    });
    let sent: usize = sent.buffered(at_once).fold(0, |sum, count| async move { sum + count }).await;
    let took = started.elapsed().as_secs_f64();
    ensure!(sent as u64 == messages, "the broker confirmed {sent} of {messages} messages");
    sink.close().await;
    Ok(precise(messages) / took)
}

fn destination(broker: Broker, topic: &Topic) -> Destination {
    let routing_key = if broker == Broker::Rabbitmq { topic.name().to_owned() } else { String::new() };
    Destination { sink: "bench".to_owned(), target: topic.name().to_owned(), routing_key }
}

fn outgoing(common: &Common, destination: &Arc<Destination>, numbers: std::ops::Range<u64>) -> Vec<Outgoing> {
    let topic: Arc<str> = destination.target.as_str().into();
    let one = |number: u64| Outgoing {
        message_id: Uuid::now_v7(),
        key_hash: number + 1,
        topic: Arc::clone(&topic),
        key: Some(format!("key-{}", number.wrapping_mul(7919) % common.keys.max(1)).into_bytes()),
        event_type: None,
        content_type: None,
        headers: Vec::new(),
        payload: Some(vec![b'x'; common.bytes]),
        created_at_micros: 0,
        destination: Arc::clone(destination),
    };
    numbers.map(one).collect()
}
