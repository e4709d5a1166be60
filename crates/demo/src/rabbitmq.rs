//! The mailer's end of RabbitMQ.

use anyhow::{Context as _, Result, bail};
use futures_util::StreamExt as _;
use lapin::{
    Channel, Connection, ConnectionProperties,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, QueueBindOptions, QueueDeclareOptions,
        QueueDeleteOptions,
    },
    types::{FieldTable, ShortString},
};
use outbox_core::{Event as _, Uuid};
use tokio_util::sync::CancellationToken;

use crate::{
    consumers::{Consumer, Next},
    events::ReceiptDue,
};

/// The exchange to which the relay sends. Every RabbitMQ has it.
pub(crate) const EXCHANGE: &str = "amq.topic";
/// How many messages RabbitMQ hands over ahead of their acknowledgement.
const PREFETCH: u16 = 64;

/// The name of a run's queue.
pub(crate) fn queue(run: &str) -> String {
    format!("{run}.{}", ReceiptDue::TOPIC)
}

/// A queue, and its binding of the same name.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    url: String,
    name: ShortString,
}

impl Queue {
    pub(crate) fn new(url: &str, run: &str) -> Result<Self> {
        Ok(Self { url: url.to_owned(), name: ShortString::try_new(queue(run))? })
    }

    /// Declares queue and binding: without them the relay's messages would be unroutable.
    pub(crate) async fn create(&self) -> Result<()> {
        let (connection, channel) = self.open().await?;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(self.name.clone(), durable, FieldTable::default()).await?;
        let (name, bind) = (self.name.clone(), QueueBindOptions::default());
        channel.queue_bind(name.clone(), EXCHANGE.into(), name, bind, FieldTable::default()).await?;
        Ok(connection.close(200, "done".into()).await?)
    }

    /// Deletes it.
    pub(crate) async fn delete(&self) -> Result<()> {
        let (connection, channel) = self.open().await?;
        channel.queue_delete(self.name.clone(), QueueDeleteOptions::default()).await?;
        Ok(connection.close(200, "done".into()).await?)
    }

    async fn open(&self) -> Result<(Connection, Channel)> {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        Ok((connection, channel))
    }

    /// Consumes until told to stop.
    pub(crate) async fn consume(&self, consumer: &Consumer, stop: &CancellationToken) -> Result<()> {
        let (connection, channel) = self.open().await?;
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        let (tag, options) = (consumer.role.name().into(), BasicConsumeOptions::default());
        let mut deliveries = channel.basic_consume(self.name.clone(), tag, options, FieldTable::default()).await?;
        while let Some(delivery) = stop.run_until_cancelled(deliveries.next()).await {
            let Some(delivery) = delivery else { bail!("the connection to RabbitMQ has ended") };
            let delivery = delivery?;
            match consumer.handle(id(&delivery), &delivery.data).await {
                Next::Acknowledge => delivery.ack(BasicAckOptions::default()).await?,
                Next::Redeliver => delivery.nack(BasicNackOptions { requeue: true, ..Default::default() }).await?,
            };
        }
        Ok(connection.close(200, "done".into()).await?)
    }
}

fn id(delivery: &Delivery) -> Result<Uuid> {
    let id = delivery.properties.message_id().as_ref().context("a message without `message_id`")?;
    Ok(Uuid::try_parse(id.as_str())?)
}
