//! Reads the messages of the RabbitMQ sink back.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use async_trait::async_trait;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind,
    message::BasicGetMessage,
    options::{BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use outbox_relay::{
    settings,
    sink::{
        Destination, Outgoing, Sink,
        conformance::{Arrived, ConformanceError, Control, Draft, Harness},
        rabbitmq::RabbitMq,
    },
};
use testkit::servers;
use tokio::sync::Mutex;
use uuid::Uuid;

pub(crate) struct RabbitHarness {
    sink: RabbitMq,
    pub(crate) url: String,
    /// Its own broker, if it may be stopped.
    broker: Option<Mutex<servers::RabbitMq>>,
}

impl RabbitHarness {
    /// Creates a harness with a broker of its own.
    pub(crate) async fn start() -> Result<Self> {
        let broker = servers::RabbitMq::start().await?;
        let url = broker.amqp_url();
        Ok(Self { sink: sink(&url), url, broker: Some(Mutex::new(broker)) })
    }

    /// Creates a harness with the broker that all tests share.
    pub(crate) async fn shared() -> Result<Self> {
        let url = servers::amqp_url().await?;
        Ok(Self { sink: sink(&url), url, broker: None })
    }

    /// Creates a harness with a broker that the test starts, fills and stops itself.
    pub(crate) fn at(url: &str) -> Self {
        Self { sink: sink(url), url: url.to_owned(), broker: None }
    }

    /// Makes a queue that ends with the channel's connection.
    pub(crate) async fn exclusive_queue(&self, channel: &Channel) -> Result<Arc<Destination>> {
        let destination = destination(&format!("test-{}", Uuid::now_v7()), "key");
        let exclusive = QueueDeclareOptions { exclusive: true, ..Default::default() };
        declare(channel, &destination, exclusive, FieldTable::default()).await?;
        Ok(destination)
    }

    /// Makes a durable queue behind an exchange of its own.
    pub(crate) async fn queue(&self, arguments: FieldTable) -> Result<Arc<Destination>> {
        self.queue_at(destination(&format!("test-{}", Uuid::now_v7()), "key"), arguments).await
    }

    /// Does the same under these names.
    pub(crate) async fn queue_at(
        &self,
        destination: Arc<Destination>,
        arguments: FieldTable,
    ) -> Result<Arc<Destination>> {
        let (_connection, channel) = channel(&self.url).await?;
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        declare(&channel, &destination, durable, arguments).await?;
        Ok(destination)
    }
}

pub(crate) fn destination(exchange: &str, routing_key: &str) -> Arc<Destination> {
    Arc::new(Destination::new("rabbit", exchange, routing_key))
}

pub(crate) fn sink(url: &str) -> RabbitMq {
    let mut config = settings::RabbitMqConfig::new(url);
    config.window = 500;
    RabbitMq::new("rabbit", &config).unwrap()
}

pub(crate) async fn channel(url: &str) -> Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

/// Declares an exchange, a queue of the same name, and a binding with the routing key.
async fn declare(
    channel: &Channel,
    destination: &Destination,
    queue: QueueDeclareOptions,
    arguments: FieldTable,
) -> Result<()> {
    let name = destination.target.as_str();
    let key = destination.routing_key.as_str();
    let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
    channel.exchange_declare(name.into(), ExchangeKind::Direct, durable, FieldTable::default()).await?;
    channel.queue_declare(name.into(), queue, arguments).await?;
    let none = FieldTable::default();
    channel.queue_bind(name.into(), name.into(), key.into(), QueueBindOptions::default(), none).await?;
    Ok(())
}

/// Takes all messages from a queue, until `least` have come and no more are there.
pub(crate) async fn take(url: &str, queue: &str, least: usize) -> Result<Vec<BasicGetMessage>> {
    let (_connection, channel) = channel(url).await?;
    let mut messages = Vec::new();
    let mut empty = 0;
    while empty < if messages.len() < least { 200 } else { 4 } {
        if let Some(message) = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await? {
            messages.push(message);
        } else {
            empty += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(messages)
}

#[async_trait]
impl Harness for RabbitHarness {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    async fn destination(&self) -> Result<Arc<Destination>, ConformanceError> {
        self.queue(FieldTable::default()).await.map_err(ConformanceError::new)
    }

    async fn arrived(&self, destination: &Destination, least: usize) -> Result<Vec<Arrived>, ConformanceError> {
        let messages = take(&self.url, &destination.target, least).await.map_err(ConformanceError::new)?;
        let arrived = messages.into_iter().map(|it| arrived(&it.properties, &it.data)).collect::<Result<_>>();
        arrived.map_err(ConformanceError::new)
    }

    fn missing(&self) -> Option<Arc<Destination>> {
        Some(destination(&format!("missing-{}", Uuid::now_v7()), "key"))
    }

    fn rejected(&self, destination: &Arc<Destination>) -> Option<Outgoing> {
        Some(Draft::new(destination, "too large").header("large", &"x".repeat(200_000)).build())
    }

    fn unreachable(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(sink("amqp://guest:guest@127.0.0.1:1/%2f")))
    }

    async fn control(&self, control: Control) -> Result<bool, ConformanceError> {
        let Some(broker) = &self.broker else { return Ok(false) };
        let mut broker = broker.lock().await;
        let done = match control {
            Control::Kill => broker.kill(),
            Control::Restart => broker.restart().await,
            Control::Freeze => broker.pause(),
            Control::Thaw => broker.resume(),
            _ => return Ok(false),
        };
        done.map(|()| true).map_err(ConformanceError::new)
    }
}

fn arrived(properties: &BasicProperties, body: &[u8]) -> Result<Arrived> {
    let mut key = None;
    let mut tombstone = false;
    let mut headers = Vec::new();
    for (name, value) in properties.headers().iter().flatten() {
        match (name.as_str(), value) {
            ("x-message-key", AMQPValue::LongString(bytes)) => key = Some(bytes.as_bytes().to_vec()),
            ("x-tombstone", AMQPValue::Boolean(is)) => tombstone = *is,
            ("outbox-topic", _) => {}
            (name, AMQPValue::FieldArray(values)) => {
                headers.extend(values.as_slice().iter().map(|it| (name.into(), text(it))));
            }
            (name, value) => headers.push((name.to_owned(), text(value))),
        }
    }
    Ok(Arrived {
        message_id: properties.message_id().as_ref().context("no id")?.as_str().parse()?,
        key,
        event_type: properties.kind().as_ref().map(ToString::to_string),
        content_type: properties.content_type().as_ref().map(ToString::to_string),
        headers,
        payload: (!tombstone).then(|| body.to_vec()),
    })
}

fn text(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).unwrap(),
        other => format!("{other:?}"),
    }
}
