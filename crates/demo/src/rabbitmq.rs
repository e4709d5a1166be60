//! A consumer of a RabbitMQ queue with an inbox.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use lapin::{
    Connection, ConnectionProperties, Consumer as Deliveries,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, QueueBindOptions, QueueDeclareOptions,
    },
    types::FieldTable,
};
use outbox_core::{Uuid, sqlx::MySqlPool};
use tokio_util::sync::CancellationToken;

use crate::{books, kafka::age_micros, tally::Tally};

/// The exchange that every RabbitMQ has.
pub(crate) const EXCHANGE: &str = "amq.topic";

/// A consumer of one queue.
pub(crate) struct Consumer {
    _connection: Connection,
    deliveries: Deliveries,
}

impl Consumer {
    /// Makes a queue for the topic and consumes it.
    pub(crate) async fn new(url: &str, topic: &str) -> Result<Self> {
        let connection =
            Connection::connect(url, ConnectionProperties::default()).await.context("RabbitMQ cannot be reached")?;
        let channel = connection.create_channel().await?;
        channel.basic_qos(200, BasicQosOptions::default()).await?;
        let options = QueueDeclareOptions { auto_delete: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(topic.into(), options, FieldTable::default()).await?;
        let bind = QueueBindOptions::default();
        channel.queue_bind(topic.into(), EXCHANGE.into(), topic.into(), bind, FieldTable::default()).await?;
        let consume = BasicConsumeOptions::default();
        let deliveries = channel.basic_consume(topic.into(), "demo".into(), consume, FieldTable::default()).await?;
        Ok(Self { _connection: connection, deliveries })
    }

    /// Consumes until stopped.
    pub(crate) async fn run(mut self, pool: MySqlPool, tally: Arc<Tally>, stop: CancellationToken) {
        while let Some(Some(delivery)) = stop.run_until_cancelled(self.deliveries.next()).await {
            let handled = match delivery {
                Ok(delivery) => handle(delivery, &pool, &tally).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = handled {
                eprintln!("rabbitmq consumer: {error:#}");
            }
        }
    }
}

/// Applies, then acknowledges. Now and then the acknowledgement is lost, and the message comes again.
async fn handle(delivery: Delivery, pool: &MySqlPool, tally: &Tally) -> Result<()> {
    let id = delivery.properties.message_id().as_ref().context("a message without id")?;
    let id = Uuid::parse_str(id.as_str())?;
    let enqueued = delivery.properties.timestamp().unwrap_or(0);
    let first = books::apply(pool, "rabbitmq", id, &delivery.data).await?;
    tally.rabbitmq.note(first, age_micros(i64::try_from(enqueued)? * 1000));
    if first && rand::random_ratio(1, 50) {
        let again = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
        delivery.nack(again).await?;
    } else {
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}
