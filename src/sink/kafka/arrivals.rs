//! Reads a topic from its present end.

use std::time::Instant;

use async_trait::async_trait;
use rdkafka::{
    Message as _, Offset, TopicPartitionList,
    config::ClientConfig,
    consumer::{Consumer as _, StreamConsumer},
    error::{KafkaError, KafkaResult},
    metadata::{MetadataPartition, MetadataTopic},
};

use super::{entry::unavailable, properties};
use crate::{
    config::KafkaConfig,
    sink::{PublishError, arrivals::Arrivals},
};

/// A consumer of all partitions of a topic. It has no group, commits nothing, and needs the right to read the topic.
pub(crate) struct KafkaArrivals(StreamConsumer);

impl KafkaArrivals {
    /// Begins at the end that each partition has now.
    pub(crate) async fn listen(config: &KafkaConfig, topic: &str, deadline: Instant) -> Result<Self, PublishError> {
        let (client, topic) = (properties::consumer(config), topic.to_owned());
        let listening = tokio::task::spawn_blocking(move || at_the_end(&client, &topic, deadline));
        // An error means that the runtime ends.
        let consumer = listening.await.map_err(|error| unavailable(&error.to_string()))?;
        consumer.map(Self).map_err(|error| unavailable(&properties::describe(&error)))
    }
}

/// Blocks.
fn at_the_end(client: &ClientConfig, topic: &str, deadline: Instant) -> KafkaResult<StreamConsumer> {
    let left = || deadline.saturating_duration_since(Instant::now());
    let consumer: StreamConsumer = client.create()?;
    let metadata = consumer.fetch_metadata(Some(topic), left())?;
    let mut partitions = TopicPartitionList::new();
    for partition in metadata.topics().iter().flat_map(MetadataTopic::partitions).map(MetadataPartition::id) {
        let (_, end) = consumer.fetch_watermarks(topic, partition, left())?;
        partitions.add_partition_offset(topic, partition, Offset::Offset(end))?;
    }
    consumer.assign(&partitions)?;
    Ok(consumer)
}

#[async_trait]
impl Arrivals for KafkaArrivals {
    async fn next(&mut self) -> Result<Vec<u8>, PublishError> {
        loop {
            match self.0.recv().await {
                Ok(message) => return Ok(message.payload().unwrap_or_default().to_vec()),
                // librdkafka connects again by itself.
                Err(KafkaError::MessageConsumption(error)) => tracing::debug!(%error, "the canary's consumer"),
                Err(error) => return Err(unavailable(&properties::describe(&error))),
            }
        }
    }
}
