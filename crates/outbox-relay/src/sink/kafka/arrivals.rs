//! Reads a topic from its present end.

use std::time::Instant;

use async_trait::async_trait;
use rdkafka::{
    ClientContext, Message as _, Offset, TopicPartitionList,
    config::{ClientConfig, FromClientConfigAndContext as _, RDKafkaLogLevel},
    consumer::{Consumer as _, ConsumerContext, StreamConsumer},
    error::{KafkaError, RDKafkaErrorCode as Code},
    metadata::{MetadataPartition, MetadataTopic},
};

use super::{
    entry::{end, unavailable},
    outcome, properties,
};
use crate::{
    settings::KafkaConfig,
    sink::{PublishError, arrivals::Arrivals},
};

/// A consumer of all partitions of a topic, which it assigns to itself. It commits nothing.
pub(crate) struct KafkaArrivals(Option<StreamConsumer<QuietContext>>);

/// Writes librdkafka's log at the level `debug`. The relay itself reports a canary that does not come back.
struct QuietContext;

impl ClientContext for QuietContext {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "librdkafka", facility, "{text}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, "{reason}");
    }
}

impl ConsumerContext for QuietContext {}

impl KafkaArrivals {
    /// Begins at the end that each partition has now.
    pub(crate) async fn listen(config: &KafkaConfig, topic: &str, deadline: Instant) -> Result<Self, PublishError> {
        let client = properties::consumer(config);
        let topic = topic.to_owned();
        let listening = tokio::task::spawn_blocking(move || Self::at_the_end(&client, &topic, deadline));
        // An error means that the runtime ends.
        listening.await.map_err(|error| unavailable(&error.to_string()))?
    }

    /// Blocks.
    fn at_the_end(client: &ClientConfig, topic: &str, deadline: Instant) -> Result<Self, PublishError> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let arrivals =
            Self(Some(StreamConsumer::from_config_and_context(client, QuietContext).map_err(|error| failed(&error))?));
        let Some(consumer) = &arrivals.0 else { return Ok(arrivals) };
        let metadata = consumer.fetch_metadata(Some(topic), left()).map_err(|error| failed(&error))?;
        if let Some(code) = metadata.topics().iter().find_map(MetadataTopic::error) {
            return Err(outcome::refused(code.into()));
        }
        let mut partitions = TopicPartitionList::new();
        for partition in metadata.topics().iter().flat_map(MetadataTopic::partitions).map(MetadataPartition::id) {
            let end = consumer
                .fetch_watermarks(topic, partition, left())
                .and_then(|(_, end)| partitions.add_partition_offset(topic, partition, Offset::Offset(end)));
            end.map_err(|error| failed(&error))?;
        }
        consumer.assign(&partitions).map_err(|error| failed(&error))?;
        Ok(arrivals)
    }
}

impl Drop for KafkaArrivals {
    fn drop(&mut self) {
        end(self.0.take());
    }
}

fn failed(error: &KafkaError) -> PublishError {
    error.rdkafka_error_code().map_or_else(|| unavailable(&properties::describe(error)), outcome::refused)
}

#[async_trait]
impl Arrivals for KafkaArrivals {
    async fn next(&mut self) -> Result<Vec<u8>, PublishError> {
        loop {
            let Some(consumer) = &self.0 else { return Err(unavailable("the consumer has ended")) };
            match consumer.recv().await {
                Ok(message) => return Ok(message.payload().unwrap_or_default().to_vec()),
                Err(KafkaError::MessageConsumption(
                    code @ (Code::TopicAuthorizationFailed | Code::UnknownTopicOrPartition),
                )) => return Err(outcome::refused(code)),
                // librdkafka connects again by itself.
                Err(error) => tracing::debug!(%error, "the canary's consumer"),
            }
        }
    }

    async fn close(self: Box<Self>) {}
}
