//! A consumer of a Kafka topic with an inbox.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use outbox_core::{Uuid, sqlx::MySqlPool};
use rdkafka::{
    ClientConfig, Message as _,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{CommitMode, Consumer as _, StreamConsumer},
    message::{BorrowedMessage, Headers as _},
};
use tokio_util::sync::CancellationToken;

use crate::{books, tally::Tally};

/// A consumer of one topic.
pub(crate) struct Consumer(StreamConsumer);

impl Consumer {
    /// Makes the topic and subscribes to it.
    pub(crate) async fn new(bootstrap: &str, topic: &str) -> Result<Self> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap).set("group.id", format!("demo-{topic}"));
        config.set("enable.auto.commit", "false").set("auto.offset.reset", "earliest");
        let admin: AdminClient<DefaultClientContext> = config.create()?;
        let new = NewTopic::new(topic, 4, TopicReplication::Fixed(1));
        for made in admin.create_topics([&new], &AdminOptions::new()).await.context("Kafka cannot be reached")? {
            made.map_err(|(topic, error)| anyhow::anyhow!("the topic {topic} cannot be made: {error}"))?;
        }
        let consumer: StreamConsumer = config.create()?;
        consumer.subscribe(&[topic])?;
        Ok(Self(consumer))
    }

    /// Consumes until stopped.
    pub(crate) async fn run(self, pool: MySqlPool, tally: Arc<Tally>, stop: CancellationToken) {
        while let Some(message) = stop.run_until_cancelled(self.0.recv()).await {
            let handled = match message {
                Ok(message) => self.handle(&message, &pool, &tally).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = handled {
                eprintln!("kafka consumer: {error:#}");
            }
        }
    }

    /// Applies, then acknowledges. Now and then the acknowledgement is lost, and the message comes again.
    async fn handle(&self, message: &BorrowedMessage<'_>, pool: &MySqlPool, tally: &Tally) -> Result<()> {
        let headers = message.headers().context("a message without headers")?;
        let id = headers.iter().find(|header| header.key == "id").and_then(|header| header.value);
        let id = Uuid::parse_str(std::str::from_utf8(id.context("a message without id")?)?)?;
        let age = age_micros(message.timestamp().to_millis().unwrap_or(0));
        let deliveries = if rand::random_ratio(1, 50) { 2 } else { 1 };
        for _ in 0..deliveries {
            let first = books::apply(pool, "kafka", id, message.payload().unwrap_or_default()).await?;
            tally.kafka.note(first, age);
        }
        Ok(self.0.commit_message(message, CommitMode::Async)?)
    }
}

/// Age of a message that was enqueued at this time, in milliseconds since 1970.
pub(crate) fn age_micros(enqueued: i64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    u64::try_from(now).unwrap_or(0).saturating_sub(enqueued.unsigned_abs()) * 1000
}
