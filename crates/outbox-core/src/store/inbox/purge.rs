//! Deletes dead messages and sequenced keys of the inbox that are older than their retention, in chunks by primary key.
//!
//! Rows that another transaction has locked are left out: a handler may hold one for as long as its work takes.

use std::{collections::HashMap, time::Duration};

use sqlx::{Connection as _, MySqlConnection};

use crate::store::{
    enqueue::micros,
    text::{Hex, Text, sql},
};

/// The name of the lease of the process that purges the inbox.
pub const LEASE_NAME: &str = "outbox/inbox-purge";

/// Deletes messages that consumers gave up longer ago than this, and dates their marks in `inbox_processed` at present,
/// so that they are purged in their turn. Returns how many; at most `limit`. Index `inbox_dead_died_at`, then primary
/// keys; one transaction.
pub async fn dead(conn: &mut MySqlConnection, age: Duration, limit: u32) -> Result<u64, sqlx::Error> {
    let sql = "SELECT consumer, message_id FROM inbox_dead WHERE died_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND \
               ORDER BY died_at LIMIT ? FOR UPDATE SKIP LOCKED";
    let mut tx = conn.begin().await?;
    let rows: Vec<(String, Vec<u8>)> = sqlx::query_as(sql).bind(micros(age)).bind(limit).fetch_all(&mut *tx).await?;
    if rows.is_empty() {
        return tx.rollback().await.map(|()| 0);
    }
    let delete = |(consumer, message_id): &(String, Vec<u8>)| {
        sql!(
            "DELETE FROM inbox_dead WHERE consumer = {consumer} AND message_id = {message_id};
                UPDATE inbox_processed SET processed_at = UTC_TIMESTAMP(6) WHERE consumer = {consumer}
                AND message_id = {message_id} AND processed_at > UTC_TIMESTAMP(6) + INTERVAL 1 DAY",
            consumer = ascii(consumer),
            message_id = Hex(message_id),
        )
    };
    Text::joined(rows.iter().map(delete), "; ").run(&mut tx).await?;
    tx.commit().await?;
    Ok(rows.len() as u64)
}

/// A row of `inbox_sequence`. The default comes before the first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyPosition {
    consumer: String,
    topic: String,
    key: Vec<u8>,
}

impl KeyPosition {
    fn is(&self) -> Text {
        sql!(
            "consumer = {consumer} AND topic = {topic} AND message_key = {key}",
            consumer = ascii(&self.consumer),
            topic = ascii(&self.topic),
            key = Hex(&self.key),
        )
    }
}

/// Of the first `limit` sequenced keys behind a position, deletes those of which no number was noted for this time.
/// Returns how many, and the last position; `None` at the end of the table. Keys of a consumer that keeps refused
/// messages stay: the next message would otherwise be processed before these. Reads `limit` rows by primary key without
/// a lock, the refused messages of the consumers of old keys, and locks keys by primary key; one transaction.
pub async fn sequences(
    conn: &mut MySqlConnection,
    age: Duration,
    after: &KeyPosition,
    limit: u32,
) -> Result<(u64, Option<KeyPosition>), sqlx::Error> {
    let rows = slice(conn, age, after, limit).await?;
    let end = rows.last().filter(|_| rows.len() as u64 == u64::from(limit)).map(|(key, _)| key.clone());
    let mut due = Vec::new();
    let mut refuses = HashMap::new();
    for (key, is_old) in rows {
        if is_old && !refuses.contains_key(&key.consumer) {
            refuses.insert(key.consumer.clone(), has_refused(conn, &key.consumer).await?);
        }
        if is_old && refuses.get(&key.consumer) == Some(&false) {
            due.push(key);
        }
    }
    let mut deleted = 0;
    if !due.is_empty() {
        let mut tx = conn.begin().await?;
        deleted = delete(&mut tx, age, &due).await?;
        tx.commit().await?;
    }
    Ok((deleted, end))
}

async fn slice(
    conn: &mut MySqlConnection,
    age: Duration,
    after: &KeyPosition,
    limit: u32,
) -> Result<Vec<(KeyPosition, bool)>, sqlx::Error> {
    // Not (a, b, c) > (?, ?, ?), which MySQL takes for no range.
    let sql = "SELECT consumer, topic, message_key, \
               COALESCE(seen_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND, FALSE) \
               FROM inbox_sequence FORCE INDEX (PRIMARY) \
               WHERE consumer > ? OR consumer = ? AND (topic > ? OR topic = ? AND message_key > ?) \
               ORDER BY consumer, topic, message_key LIMIT ?";
    let KeyPosition { consumer, topic, key } = after;
    let query = sqlx::query_as(sql).bind(micros(age)).bind(consumer).bind(consumer).bind(topic).bind(topic).bind(key);
    let rows: Vec<(String, String, Vec<u8>, bool)> = query.bind(limit).fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(consumer, topic, key, is_old)| (KeyPosition { consumer, topic, key }, is_old)).collect())
}

/// Whether a consumer keeps messages that were refused by their number. Primary key, the consumer's rows; no lock.
async fn has_refused(conn: &mut MySqlConnection, consumer: &str) -> Result<bool, sqlx::Error> {
    let sql = "SELECT 1 FROM inbox_dead WHERE consumer = ? AND reason = 'sequence' LIMIT 1";
    Ok(sqlx::query(sql).bind(consumer).fetch_optional(conn).await?.is_some())
}

/// Locks the keys that are free and still as old, and deletes them; returns how many.
async fn delete(tx: &mut MySqlConnection, age: Duration, due: &[KeyPosition]) -> Result<u64, sqlx::Error> {
    let lock = |key: &KeyPosition| {
        sql!(
            "SELECT 1 FROM inbox_sequence WHERE {is} AND seen_at < UTC_TIMESTAMP(6) - INTERVAL {age} MICROSECOND \
             FOR UPDATE SKIP LOCKED",
            is = key.is(),
            age = micros(age),
        )
    };
    let locked = Text::joined(due.iter().map(lock), "; ").run(&mut *tx).await?;
    let due: Vec<_> = due.iter().zip(&locked).filter(|(_, reply)| !reply.rows.is_empty()).map(|(due, _)| due).collect();
    if due.is_empty() {
        return Ok(0);
    }
    let delete = |key: &&KeyPosition| sql!("DELETE FROM inbox_sequence WHERE {is}", is = key.is());
    Text::joined(due.iter().map(delete), "; ").run(tx).await?;
    Ok(due.len() as u64)
}

/// A string of a column in ASCII.
fn ascii(text: &str) -> Text {
    sql!("_ascii {text}", text = Hex(text.as_bytes()))
}
