//! Ships orders: a consumer written for Debezium's outbox event router. It does not use this project.

use anyhow::{Context as _, Result};
use rdkafka::{
    ClientConfig, Message as _,
    consumer::{CommitMode, Consumer as _, StreamConsumer},
    message::{BorrowedMessage, Headers as _},
};
use serde::Deserialize;
use sqlx::{MySqlConnection, MySqlPool};

/// The processed events, and the shipments. The order has no unique key, so that a second shipment would show.
const TABLES: &str = "CREATE TABLE IF NOT EXISTS consumed_events (event_id CHAR(36) PRIMARY KEY); \
    CREATE TABLE IF NOT EXISTS shipments (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, \
    order_id BIGINT UNSIGNED NOT NULL, customer_id BIGINT UNSIGNED NOT NULL)";

/// The fields of an `OrderCreated` that this service needs.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OrderCreated {
    customer_id: u64,
}

/// Creates the tables of this service, unless they exist.
pub async fn create_tables(pool: &MySqlPool) -> Result<()> {
    sqlx::raw_sql(TABLES).execute(pool).await?;
    Ok(())
}

/// Creates a member of the group of this name, which begins at the oldest record.
pub fn consumer(brokers: &str, group: &str, topic: &str) -> Result<StreamConsumer> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("group.id", group).set("auto.offset.reset", "earliest");
    // An offset may be committed only after its transaction.
    let consumer: StreamConsumer = config.set("enable.auto.commit", "false").create()?;
    consumer.subscribe(&[topic])?;
    Ok(consumer)
}

/// Consumes until `stop` ends or a record cannot be applied. That record's offset is not committed, so it is delivered
/// again.
pub async fn run(consumer: &StreamConsumer, pool: &MySqlPool, stop: impl Future<Output = ()>) -> Result<()> {
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            received = consumer.recv() => match received {
                Ok(record) => {
                    apply(pool, &record).await?;
                    consumer.commit_message(&record, CommitMode::Async)?;
                }
                // librdkafka reconnects by itself.
                Err(error) => tracing::warn!(%error, "Kafka gave no record"),
            },
        }
    }
}

/// Applies an event and records its id in one transaction. False: it was applied before, or is not for this service.
pub async fn apply(pool: &MySqlPool, record: &BorrowedMessage<'_>) -> Result<bool> {
    if header(record, "eventType") != Some("OrderCreated") {
        return Ok(false);
    }
    let event_id = header(record, "id").context("an event without the header `id`")?;
    let order_id: u64 = record.key_view::<str>().context("an event without key")??.parse()?;
    let order: OrderCreated = serde_json::from_slice(record.payload().unwrap_or_default())?;
    let mut tx = pool.begin().await?;
    if !remember(&mut tx, event_id).await? {
        return Ok(false);
    }
    let shipment = "INSERT INTO shipments (order_id, customer_id) VALUES (?, ?)";
    sqlx::query(shipment).bind(order_id).bind(order.customer_id).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(true)
}

/// Records the id of an event; false if it was recorded before.
async fn remember(tx: &mut MySqlConnection, event_id: &str) -> Result<bool> {
    match sqlx::query("INSERT INTO consumed_events (event_id) VALUES (?)").bind(event_id).execute(tx).await {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns a header of a record, if it exists and is text.
#[must_use]
pub fn header<'a>(record: &'a BorrowedMessage<'_>, name: &str) -> Option<&'a str> {
    let value = record.headers()?.iter().find(|header| header.key == name)?.value?;
    std::str::from_utf8(value).ok()
}
