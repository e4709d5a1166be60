//! Billing's end of Kafka.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use outbox_core::{Event as _, Uuid};
use rdkafka::{
    ClientConfig, Message as _, Offset,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{Consumer as _, StreamConsumer},
    message::{BorrowedMessage, Headers as _},
    types::RDKafkaErrorCode,
};
use tokio_util::sync::CancellationToken;

use crate::{
    consumers::{Consumer, Next},
    events::OrderPlaced,
};

const PARTITIONS: i32 = 4;
const DEADLINE: Duration = Duration::from_secs(15);

/// The name of a run's topic.
pub(crate) fn topic(run: &str) -> String {
    format!("{run}.{}", OrderPlaced::TOPIC)
}

/// A topic on a Kafka cluster.
#[derive(Debug, Clone)]
pub(crate) struct Topic {
    brokers: String,
    name: String,
}

impl Topic {
    pub(crate) fn new(brokers: &str, run: &str) -> Self {
        Self { brokers: brokers.to_owned(), name: topic(run) }
    }

    /// Creates it, unless it is there. The relay never does: a misspelt topic would swallow messages.
    pub(crate) async fn create(&self) -> Result<()> {
        let topic = NewTopic::new(&self.name, PARTITIONS, TopicReplication::Fixed(1));
        // To be kept until the answer is there: the future of a client that is gone never ends.
        let admin = self.admin()?;
        let created = admin.create_topics([&topic], &AdminOptions::new().operation_timeout(Some(DEADLINE)));
        match created.await?.pop().context("Kafka gave no answer")? {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => Ok(()),
            Err((topic, code)) => bail!("cannot create the topic {topic}: {code}"),
        }
    }

    /// Deletes it.
    pub(crate) async fn delete(&self) -> Result<()> {
        self.admin()?.delete_topics(&[&self.name], &AdminOptions::new()).await?;
        Ok(())
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>> {
        Ok(ClientConfig::new().set("bootstrap.servers", &self.brokers).create()?)
    }

    /// Offsets are stored only after the work is committed, and sent to Kafka in the background.
    fn subscribe(&self, group: &str) -> Result<StreamConsumer> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers).set("group.id", format!("{}-{group}", self.name));
        config.set("enable.auto.offset.store", "false").set("auto.offset.reset", "earliest");
        config.set("fetch.wait.max.ms", "20");
        let consumer: StreamConsumer = config.create()?;
        consumer.subscribe(&[&self.name])?;
        Ok(consumer)
    }

    /// Consumes until told to stop.
    pub(crate) async fn consume(&self, consumer: &Consumer, stop: &CancellationToken) -> Result<()> {
        let messages = self.subscribe(consumer.role.name())?;
        while let Some(message) = stop.run_until_cancelled(messages.recv()).await {
            let message = message?;
            match consumer.handle(id(&message), message.payload().unwrap_or_default()).await {
                Next::Acknowledge => messages.store_offset_from_message(&message)?,
                Next::Redeliver => seek_back(&messages, &message)?,
            }
        }
        Ok(())
    }
}

fn id(message: &BorrowedMessage<'_>) -> Result<Uuid> {
    let header = message.headers().and_then(|headers| headers.iter().find(|header| header.key == "id"));
    let value = header.and_then(|header| header.value).context("a record without the header `id`")?;
    Ok(Uuid::try_parse_ascii(value)?)
}

/// As after a restart of the consumer: Kafka delivers the message and those behind it again.
fn seek_back(messages: &StreamConsumer, message: &BorrowedMessage<'_>) -> Result<()> {
    Ok(messages.seek(message.topic(), message.partition(), Offset::Offset(message.offset()), DEADLINE)?)
}
