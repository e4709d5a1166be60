//! Reads the messages of the Kafka sink back.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use async_trait::async_trait;
use outbox_relay::{
    settings,
    sink::{
        Destination, Outgoing, Sink,
        conformance::{Arrived, ConformanceError, Control, Draft, Harness},
        kafka::Kafka,
    },
};
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewPartitions},
    consumer::{BaseConsumer, Consumer as _},
    message::{BorrowedMessage, Headers as _},
    metadata::MetadataTopic,
};
use testkit::servers::{self, PATIENCE};
use tokio::sync::Mutex;
use uuid::Uuid;

pub(crate) struct KafkaHarness {
    sink: Kafka,
    bootstrap: String,
    /// Its own broker, if it may be stopped.
    broker: Option<Mutex<servers::Kafka>>,
}

impl KafkaHarness {
    /// Creates a harness with a broker of its own.
    pub(crate) async fn start() -> Result<Self> {
        let broker = servers::Kafka::start().await?;
        let bootstrap = broker.bootstrap();
        Ok(Self { sink: sink(&bootstrap), bootstrap, broker: Some(Mutex::new(broker)) })
    }

    /// Creates a harness with the broker that all tests share.
    pub(crate) async fn shared() -> Result<Self> {
        let bootstrap = servers::kafka_bootstrap().await?;
        Ok(Self { sink: sink(&bootstrap), bootstrap, broker: None })
    }

    pub(crate) fn bootstrap(&self) -> &str {
        &self.bootstrap
    }
}

pub(crate) fn sink(bootstrap: &str) -> Kafka {
    sink_with(bootstrap, &[])
}

pub(crate) fn sink_with(bootstrap: &str, properties: &[(&str, &str)]) -> Kafka {
    let properties = properties.iter().map(|(name, value)| ((*name).to_owned(), settings::Secret::new(*value)));
    let mut config = settings::KafkaConfig::new(bootstrap);
    config.properties.extend(properties);
    Kafka::new("kafka", &config).unwrap()
}

#[async_trait]
impl Harness for KafkaHarness {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    async fn destination(&self) -> Result<Arc<Destination>, ConformanceError> {
        let target = format!("test-{}", Uuid::now_v7());
        servers::create_topic(&self.bootstrap, &target, 4).await.map_err(ConformanceError::new)?;
        Ok(Arc::new(Destination::new("kafka", target, "")))
    }

    async fn arrived(&self, destination: &Destination, least: usize) -> Result<Vec<Arrived>, ConformanceError> {
        let records = consume(&self.bootstrap, &destination.target, least);
        let arrived = records.and_then(|records| records.into_iter().map(Record::arrived).collect());
        arrived.map_err(ConformanceError::new)
    }

    fn missing(&self) -> Option<Arc<Destination>> {
        let target = format!("missing-{}", Uuid::now_v7());
        Some(Arc::new(Destination::new("kafka", target, "")))
    }

    fn rejected(&self, destination: &Arc<Destination>) -> Option<Outgoing> {
        Some(Draft::new(destination, vec![b'x'; 1_100_000]).build())
    }

    fn unreachable(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(sink("127.0.0.1:1")))
    }

    async fn control(&self, control: Control) -> Result<bool, ConformanceError> {
        let Some(broker) = &self.broker else { return Ok(false) };
        let mut broker = broker.lock().await;
        let done = match control {
            Control::Kill => broker.kill(),
            Control::Restart => broker.restart().await,
            Control::Freeze => broker.pause(),
            Control::Thaw => broker.resume(),
            _ => return Ok(false),
        };
        done.map(|()| true).map_err(ConformanceError::new)
    }
}

/// A record as Kafka has it.
pub(crate) struct Record {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) timestamp: Option<i64>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, String)>,
}

impl Record {
    fn arrived(mut self) -> Result<Arrived> {
        let mut known = |name: &str| {
            let first = self.headers.first().is_some_and(|(it, _)| it == name);
            first.then(|| self.headers.remove(0).1)
        };
        let id = known("id");
        let event_type = known("type");
        let content_type = known("content-type");
        known("outbox-topic").context("no topic")?;
        Ok(Arrived {
            message_id: id.context("no id")?.parse()?,
            key: self.key,
            event_type,
            content_type,
            headers: self.headers,
            payload: self.payload,
        })
    }
}

/// Reads a topic from its start to its end, again until `least` records are there.
pub(crate) fn consume(bootstrap: &str, topic: &str, least: usize) -> Result<Vec<Record>> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("group.id", "none").set("enable.auto.commit", "false");
    config.set("fetch.wait.max.ms", "50");
    let consumer: BaseConsumer = config.create()?;
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE)?;
    let mut partitions = TopicPartitionList::new();
    for partition in metadata.topics().iter().flat_map(MetadataTopic::partitions) {
        partitions.add_partition_offset(topic, partition.id(), Offset::Beginning)?;
    }
    consumer.assign(&partitions)?;
    let mut records = Vec::new();
    let end = Instant::now() + PATIENCE;
    loop {
        let written = written(&consumer, &partitions)?;
        while records.len() < written {
            let message = consumer.poll(PATIENCE).context("no record in time")??;
            records.push(record(&message));
        }
        if records.len() >= least || Instant::now() > end {
            return Ok(records);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the number of records in these partitions. Offsets have no gaps: there are no transactions.
fn written(consumer: &BaseConsumer, partitions: &TopicPartitionList) -> Result<usize> {
    let mut written = 0;
    for partition in partitions.elements() {
        let (low, high) = consumer.fetch_watermarks(partition.topic(), partition.partition(), PATIENCE)?;
        written += usize::try_from(high - low)?;
    }
    Ok(written)
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let headers =
        message.headers().map(|headers| headers.iter().map(|it| (it.key.to_owned(), text(it.value))).collect());
    Record {
        partition: message.partition(),
        offset: message.offset(),
        timestamp: message.timestamp().to_millis(),
        key: message.key().map(<[u8]>::to_vec),
        payload: message.payload().map(<[u8]>::to_vec),
        headers: headers.unwrap_or_default(),
    }
}

fn text(bytes: Option<&[u8]>) -> String {
    String::from_utf8(bytes.unwrap_or_default().to_vec()).unwrap()
}

/// Checks that the first arrivals of the numbers below `count` are in order and complete. Other payloads are ignored.
pub(crate) fn in_first_order(records: &[Record], count: usize) {
    let mut next = 0;
    for record in records {
        let number = record.payload.as_deref().and_then(|it| std::str::from_utf8(it).ok()?.parse::<usize>().ok());
        if number == Some(next) {
            next += 1;
        } else if let Some(number) = number {
            assert!(number < next, "{number} arrived before {next}");
        }
    }
    assert_eq!(next, count, "the first that did not arrive");
}

pub(crate) async fn delete_topic(bootstrap: &str, topic: &str) -> Result<()> {
    let admin: AdminClient<_> = ClientConfig::new().set("bootstrap.servers", bootstrap).create()?;
    admin.delete_topics(&[topic], &AdminOptions::new().operation_timeout(Some(Duration::from_secs(10)))).await?;
    Ok(())
}

/// Gives a topic more partitions, so that it has this many.
pub(crate) async fn add_partitions(bootstrap: &str, topic: &str, count: usize) -> Result<()> {
    let admin: AdminClient<_> = ClientConfig::new().set("bootstrap.servers", bootstrap).create()?;
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(10)));
    for added in admin.create_partitions(&[NewPartitions::new(topic, count)], &options).await? {
        added.map_err(|(topic, code)| anyhow::anyhow!("no partitions for {topic}: {code}"))?;
    }
    Ok(())
}
