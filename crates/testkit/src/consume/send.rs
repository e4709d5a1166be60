//! Sends to a topic without a relay: for tests of consumers, which also meet messages that no relay sends.

use anyhow::Result;
use lapin::{
    BasicProperties, Connection, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use rdkafka::{
    ClientConfig,
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord},
};
use uuid::Uuid;

use super::{Broker, PATIENCE, Topic, patience};

/// A message as the relay would send it, except for the parts left out.
#[derive(Debug, Clone)]
pub struct Sending {
    /// The message id; `None` if it is no message of an outbox.
    pub id: Option<Uuid>,
    /// The message key.
    pub key: Option<String>,
    /// Headers of its own.
    pub headers: Vec<(String, String)>,
    /// The payload.
    pub payload: String,
}

impl Sending {
    /// A message with a new id.
    #[must_use]
    pub fn new(key: &str, payload: impl Into<String>) -> Self {
        let id = Some(Uuid::now_v7());
        let key = Some(key.to_owned());
        Self { id, key, headers: Vec::new(), payload: payload.into() }
    }
}

impl Topic {
    /// Sends messages, one after the other, and waits until the broker has all of them.
    ///
    /// # Errors
    /// When the broker cannot be reached or refuses.
    pub async fn send(&self, messages: &[Sending]) -> Result<()> {
        match self.broker {
            Broker::Kafka => kafka(self, messages).await,
            Broker::RabbitMq => tokio::time::timeout(PATIENCE, rabbitmq(self, messages)).await?,
        }
    }
}

async fn kafka(topic: &Topic, messages: &[Sending]) -> Result<()> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", topic.address()).set("partitioner", "murmur2_random");
    // With more than one in flight to a new partition, messages can be lost and reported as sent: see the relay's sink.
    config.set("enable.idempotence", "true").set("max.in.flight", "1");
    let producer: FutureProducer = config.create()?;
    let mut reports = Vec::new();
    for message in messages {
        let id = message.id.map(|id| id.to_string());
        let id = id.iter().map(|id| ("id", id.as_str()));
        let own = message.headers.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let headers = id
            .chain(own)
            .fold(OwnedHeaders::new(), |headers, (key, value)| headers.insert(Header { key, value: Some(value) }));
        let mut record = FutureRecord::to(topic.name()).payload(message.payload.as_str()).headers(headers);
        record.key = message.key.as_deref();
        reports.push(producer.send_result(record).map_err(|(error, _)| error)?);
    }
    for report in reports {
        report.await?.map_err(|(error, _)| error)?;
    }
    Ok(rdkafka::producer::Producer::flush(&producer, patience())?)
}

async fn rabbitmq(topic: &Topic, messages: &[Sending]) -> Result<()> {
    let connection = Connection::connect(topic.address(), ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let name = ShortString::try_new(topic.name())?;
    let options = BasicPublishOptions::default();
    let mut confirms = Vec::new();
    for message in messages {
        let mut headers = FieldTable::default();
        let key = message.key.iter().map(|key| ("x-message-key", key.as_str()));
        let own = message.headers.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        for (name, value) in key.chain(own) {
            headers.insert(ShortString::try_new(name)?, AMQPValue::LongString(value.into()));
        }
        let mut properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
        if let Some(id) = message.id {
            properties = properties.with_message_id(ShortString::try_new(id.to_string())?);
        }
        let publish =
            channel.basic_publish(name.clone(), name.clone(), options, message.payload.as_bytes(), properties);
        confirms.push(publish.await?);
    }
    for confirm in confirms {
        confirm.await?;
    }
    Ok(connection.close(200, "sent".into()).await?)
}
