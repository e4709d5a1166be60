//! The topic for dead messages.

use std::{sync::Arc, time::Duration};

use outbox_core::TOPIC_HEADER;
use rdkafka::{
    ClientConfig,
    config::FromClientConfigAndContext as _,
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord},
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{
    Consumer,
    client::Client,
    context::{Quiet, client_error},
};
use crate::{ConsumerError, Delivery, Retry, lines, process::Obituary};

/// How long one attempt may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Longest error text in a header, in characters: as in the table `inbox_dead`.
const MAX_ERROR: usize = 500;

/// Sends dead messages to a topic.
#[derive(Clone)]
pub(super) struct DeadLetters(Arc<Inner>);

struct Inner {
    topic: String,
    consumer: String,
    retry: Retry,
    producer: Client<FutureProducer<Quiet>>,
}

impl DeadLetters {
    pub(super) fn new(topic: &str, consumer: &Consumer) -> Result<Self, ConsumerError> {
        let mut config = ClientConfig::new();
        let name = consumer.inbox.consumer().to_owned();
        config.set("partitioner", "murmur2_random").set("allow.auto.create.topics", "false");
        consumer.finish(&mut config);
        config.set("acks", "all").set("enable.idempotence", "true");
        // The broker decides what is too large: a message that it sent once, with a few more headers, fits below its
        // own default limit.
        config.set("message.max.bytes", "100000000");
        config.set("message.timeout.ms", DEADLINE.as_millis().to_string());
        let producer = FutureProducer::from_config_and_context(&config, Quiet(name.clone())).map_err(client_error)?;
        let topic = topic.to_owned();
        Ok(Self(Arc::new(Inner {
            topic,
            consumer: name,
            retry: consumer.options.retry,
            producer: Client::new(producer),
        })))
    }

    /// Sends a dead message of a Kafka topic until Kafka has it; false: stopped before.
    pub(super) async fn send(
        &self,
        delivery: &Delivery,
        obituary: &Obituary,
        from: &str,
        stop: &CancellationToken,
    ) -> bool {
        let mut failures = 0;
        while let Err(error) = self.send_once(delivery, obituary, from).await {
            failures += 1;
            if lines::shown(&self.0.consumer, "cannot send the dead message yet") {
                tracing::warn!(message_id = %delivery.id, topic = self.0.topic, %error, "cannot send the dead message \
                                                                                         yet");
            }
            if stop.run_until_cancelled(sleep(self.0.retry.wait(failures))).await.is_none() {
                return false;
            }
        }
        true
    }

    async fn send_once(&self, delivery: &Delivery, obituary: &Obituary, from: &str) -> Result<(), KafkaError> {
        let headers = self.headers(delivery, obituary, from);
        let mut record = FutureRecord::<[u8], [u8]>::to(&self.0.topic).headers(headers);
        record.key = delivery.contents.key.as_deref();
        record.payload = delivery.contents.payload.as_deref();
        let sent = self.0.producer.send(record, DEADLINE).await.map_err(|(error, _)| error)?;
        // Without an offset librdkafka only infers the confirm, from a later record that Kafka took. If the broker had
        // no record of this producer in that partition before, the inference may be wrong (KAFKA-15591).
        if sent.offset < 0 { Err(KafkaError::MessageProduction(RDKafkaErrorCode::NoOffset)) } else { Ok(()) }
    }

    fn headers(&self, delivery: &Delivery, obituary: &Obituary, from: &str) -> OwnedHeaders {
        let id = delivery.id.to_string();
        let attempts = obituary.attempts.to_string();
        let error: String = obituary.error.chars().take(MAX_ERROR).collect();
        let known = [
            ("id", Some(id.as_str())),
            ("type", delivery.contents.event_type.as_deref()),
            ("content-type", delivery.contents.content_type.as_deref()),
            (TOPIC_HEADER, Some(delivery.contents.topic.as_str())),
            ("x-dead-letter-reason", Some(obituary.reason)),
            ("x-dead-letter-error", Some(error.as_str())),
            ("x-dead-letter-attempts", Some(attempts.as_str())),
            ("x-dead-letter-consumer", Some(self.0.consumer.as_str())),
            ("x-dead-letter-topic", Some(from)),
        ];
        let known = known.into_iter().filter_map(|(key, value)| Some((key, value?)));
        let own = delivery.contents.headers.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let own = own.filter(|(key, _)| !key.starts_with("x-dead-letter-"));
        known
            .chain(own)
            .fold(OwnedHeaders::new(), |headers, (key, value)| headers.insert(Header { key, value: Some(value) }))
    }
}
