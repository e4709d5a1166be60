//! A consumer of a RabbitMQ queue.

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use lapin::{
    Connection, ConnectionProperties,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::{FieldTable, ShortString},
};
use uuid::Uuid;

use super::{Job, connect, process};

/// How many messages RabbitMQ hands over ahead of their acknowledgement.
const PREFETCH: u16 = 32;

/// A message is acknowledged after its commit.
pub(super) async fn consume(job: &Job, done: &mut u32) -> Result<()> {
    let connection = Connection::connect(&job.address, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let (queue, options) = (ShortString::try_new(job.source.as_str())?, BasicConsumeOptions::default());
    let mut deliveries = channel.basic_consume(queue, "".into(), options, FieldTable::default()).await?;
    let mut db = connect(job).await?;
    while let Some(delivery) = deliveries.next().await {
        let delivery = delivery?;
        let id = delivery.properties.message_id().as_ref().context("a message without id")?;
        process(job, &mut db, Uuid::try_parse(id.as_str())?, done).await?;
        delivery.ack(BasicAckOptions::default()).await?;
    }
    anyhow::bail!("the connection to RabbitMQ has ended")
}
