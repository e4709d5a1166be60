//! A consumer of a Kafka topic, in the group of all consumers of the run.

use anyhow::{Context as _, Result};
use rdkafka::{
    ClientConfig, Message as _,
    consumer::{Consumer as _, StreamConsumer},
    message::{BorrowedMessage, Headers as _},
};
use uuid::Uuid;

use super::{Job, connect, process};

/// An offset is stored after its commit, and sent to Kafka soon after.
pub(super) async fn consume(job: &Job, done: &mut u32) -> Result<()> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &job.address).set("group.id", format!("{}-consumers", job.source));
    config.set("enable.auto.offset.store", "false").set("auto.commit.interval.ms", "500");
    // The partitions of a consumer that was killed are to be another's soon.
    config.set("session.timeout.ms", "6000").set("heartbeat.interval.ms", "1000");
    config.set("auto.offset.reset", "earliest").set("fetch.wait.max.ms", "20");
    let consumer: StreamConsumer = config.create()?;
    consumer.subscribe(&[&job.source])?;
    let mut db = connect(job).await?;
    loop {
        let message = consumer.recv().await?;
        process(job, &mut db, id(&message)?, done).await?;
        consumer.store_offset_from_message(&message)?;
    }
}

fn id(message: &BorrowedMessage<'_>) -> Result<Uuid> {
    let header = message.headers().and_then(|headers| headers.iter().find(|header| header.key == "id"));
    Ok(Uuid::try_parse_ascii(header.and_then(|header| header.value).context("a record without the header `id`")?)?)
}
