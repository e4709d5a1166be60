//! Reads a Kafka topic from its start to its present end.

use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    error::KafkaError,
    message::{BorrowedMessage, Headers as _},
    metadata::{MetadataPartition, MetadataTopic},
};

use super::{Arrival, PATIENCE, patience};

/// Every message of the topic, in the order of each partition.
pub(super) async fn read(bootstrap: &str, topic: &str) -> Result<Vec<Arrival>> {
    let bootstrap = bootstrap.to_owned();
    let topic = topic.to_owned();
    tokio::task::spawn_blocking(move || read_now(&bootstrap, &topic)).await?
}

fn read_now(bootstrap: &str, topic: &str) -> Result<Vec<Arrival>> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("group.id", "reader").set("enable.auto.commit", "false");
    let consumer: BaseConsumer = config.set("fetch.wait.max.ms", "20").create()?;
    let mut partitions = TopicPartitionList::new();
    let mut left = 0;
    for partition in partitions_of(&consumer, topic)? {
        let (low, high) = consumer.fetch_watermarks(topic, partition, patience())?;
        left += high - low;
        partitions.add_partition_offset(topic, partition, Offset::Offset(low))?;
    }
    consumer.assign(&partitions)?;
    // The topic has no transactions, so that every offset is a message.
    (0..left).map(|read| arrival(&next(&consumer, topic).with_context(|| format!("after {read} of {left}"))?)).collect()
}

fn partitions_of(consumer: &BaseConsumer, topic: &str) -> Result<Vec<i32>> {
    let metadata = consumer.fetch_metadata(Some(topic), patience())?;
    Ok(metadata.topics().iter().flat_map(MetadataTopic::partitions).map(MetadataPartition::id).collect())
}

/// A lost connection is no failure: librdkafka reports it, and connects again by itself.
fn next<'a>(consumer: &'a BaseConsumer, topic: &str) -> Result<BorrowedMessage<'a>> {
    let deadline = Instant::now() + PATIENCE;
    let mut lost = None;
    loop {
        match consumer.poll(deadline.saturating_duration_since(Instant::now())) {
            Some(Ok(message)) => return Ok(message),
            Some(Err(KafkaError::MessageConsumption(error))) if Instant::now() < deadline => lost = Some(error),
            Some(Err(error)) => return Err(error.into()),
            None => bail!("{topic} gave no message within {PATIENCE:?}, last error {lost:?}"),
        }
    }
}

fn arrival(message: &BorrowedMessage<'_>) -> Result<Arrival> {
    let mut headers = Vec::new();
    for header in message.headers().iter().flat_map(|headers| headers.iter()) {
        let value = String::from_utf8(header.value.unwrap_or_default().to_vec())?;
        headers.push((header.key.to_owned(), value));
    }
    let id = known(&mut headers, "id").context("a record without the header `id`")?.parse()?;
    Ok(Arrival {
        id,
        topic: message.topic().to_owned(),
        outbox_topic: known(&mut headers, "outbox-topic"),
        key: message.key().map(<[u8]>::to_vec),
        event_type: known(&mut headers, "type"),
        content_type: known(&mut headers, "content-type"),
        headers,
        payload: message.payload().map(<[u8]>::to_vec),
        place: format!("{}@{}", message.partition(), message.offset()),
        redelivered: false,
    })
}

/// Takes out a header that the relay itself writes.
fn known(headers: &mut Vec<(String, String)>, name: &str) -> Option<String> {
    let position = headers.iter().position(|(it, _)| it == name)?;
    Some(headers.remove(position).1)
}
