//! Kafka topics and RabbitMQ queues for tests.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use lapin::{
    Connection, ConnectionProperties,
    options::QueueDeclareOptions,
    types::{AMQPValue, FieldTable},
};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::metadata::MetadataTopic;

use super::host::blocking;
use super::wait;

const OPERATION: Duration = Duration::from_secs(30);

/// In Kafka's protocol a replication factor of -1 means `default.replication.factor` (KIP-464).
const BROKERS_SETTING: i32 = -1;

/// Creates a topic with the number of replicas in the brokers' settings, and waits until each partition has a leader.
///
/// # Errors
/// When the broker refuses, for example because the topic exists, or no leader appears.
pub async fn create_topic(bootstrap: &str, name: &str, partitions: i32) -> Result<()> {
    create_topic_with(bootstrap, name, partitions, &[]).await
}

/// [`create_topic`] with topic settings, for example `max.message.bytes`.
///
/// # Errors
/// As [`create_topic`].
pub async fn create_topic_with(bootstrap: &str, name: &str, partitions: i32, settings: &[(&str, &str)]) -> Result<()> {
    let client: AdminClient<DefaultClientContext> = ClientConfig::new().set("bootstrap.servers", bootstrap).create()?;
    let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(BROKERS_SETTING));
    let topic = settings.iter().fold(topic, |topic, (name, value)| topic.set(name, value));
    for result in client.create_topics([&topic], &AdminOptions::new().operation_timeout(Some(OPERATION))).await? {
        result.map_err(|(topic, code)| anyhow!("cannot create topic {topic}: {code}"))?;
    }
    let client = std::sync::Arc::new(client);
    wait::until(wait::PATIENCE, "the topic's leaders", || {
        let client = client.clone();
        let name = name.to_owned();
        blocking(move || has_leaders(&client, &name, partitions))
    })
    .await
}

/// Creates a durable queue, or does nothing if there is one.
///
/// # Errors
/// When the broker refuses, or a queue of this name has other settings.
pub async fn create_queue(url: &str, name: &str) -> Result<()> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let mut quorum = FieldTable::default();
    quorum.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    connection.create_channel().await?.queue_declare(name.into(), options, quorum).await?;
    Ok(connection.close(200, "done".into()).await?)
}

/// Deletes a topic.
///
/// # Errors
/// When the broker refuses.
pub async fn delete_topic(bootstrap: &str, name: &str) -> Result<()> {
    let client: AdminClient<DefaultClientContext> = ClientConfig::new().set("bootstrap.servers", bootstrap).create()?;
    for result in client.delete_topics(&[name], &AdminOptions::new().operation_timeout(Some(OPERATION))).await? {
        result.map_err(|(topic, code)| anyhow!("cannot delete topic {topic}: {code}"))?;
    }
    Ok(())
}

fn has_leaders(client: &AdminClient<DefaultClientContext>, name: &str, partitions: i32) -> Result<()> {
    let metadata = client.inner().fetch_metadata(Some(name), Duration::from_secs(5))?;
    let led = metadata
        .topics()
        .iter()
        .flat_map(MetadataTopic::partitions)
        .filter(|partition| partition.leader() >= 0)
        .count();
    ensure!(i32::try_from(led)? == partitions, "{led} of {partitions} partitions have a leader");
    Ok(())
}
