//! Orders of operators to retry messages that are dead at a consumer. A running consumer of that name carries them out.

use std::time::Duration;

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};
use uuid::Uuid;

use crate::store::{
    contents::uuid,
    enqueue::micros,
    inbox::TOO_LARGE,
    operate::jobs::{Actor, record},
    text::{Hex, sql},
};

/// The number of messages that a consumer keeps as dead with their payload, or whether it keeps this one. Primary key,
/// the rows of the consumer; no lock.
pub async fn retryable(
    conn: &mut MySqlConnection,
    consumer: &str,
    message_id: Option<Uuid>,
) -> Result<u64, sqlx::Error> {
    let first = message_id.unwrap_or(Uuid::nil());
    let last = message_id.unwrap_or(Uuid::max());
    let sql = "SELECT COUNT(*) FROM inbox_dead WHERE consumer = ? AND message_id BETWEEN ? AND ? AND reason <> ?";
    let query = sqlx::query_scalar(sql).bind(consumer).bind(first.as_bytes().as_slice());
    let count: i64 = query.bind(last.as_bytes().as_slice()).bind(TOO_LARGE).fetch_one(conn).await?;
    Ok(count.unsigned_abs())
}

/// Orders the retry of the messages that are dead by now, or of one, and records it, in one transaction; returns its
/// number.
pub async fn order(
    conn: &mut MySqlConnection,
    (consumer, message_id): (&str, Option<Uuid>),
    messages: u64,
    actor: &Actor<'_>,
) -> Result<u64, sqlx::Error> {
    let target = message_id.map_or_else(|| consumer.to_owned(), |id| format!("{consumer} {id}"));
    let text = sql!(
        "BEGIN; INSERT INTO inbox_retries (consumer, message_id, last_id, ordered_at, busy_until)
            VALUES (_ascii {consumer}, {message_id}, {last_id}, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)); {record}; COMMIT",
        consumer = Hex(consumer.as_bytes()),
        message_id = message_id.as_ref().map(|id| Hex(id.as_bytes())),
        last_id = Hex(before(message_id.unwrap_or_default()).as_bytes()),
        record = record(actor, "inbox-retry", &target, &sql!("NULL"), Some(messages)),
    );
    let replies = text.run(conn).await?;
    Ok(replies.get(1).map_or(0, |reply| reply.done.last_insert_id()))
}

/// The id before this one.
#[must_use]
pub fn before(id: Uuid) -> Uuid {
    Uuid::from_u128(id.as_u128().saturating_sub(1))
}

/// An order. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryRow {
    /// Its number.
    pub retry_id: u64,
    /// The consumer.
    pub consumer: String,
    /// The message; `None`: all that were dead at the time of the order.
    pub message_id: Option<Uuid>,
    /// The time of the order.
    pub ordered_at: i64,
    /// When a consumer last began with a message.
    pub taken_at: Option<i64>,
    /// When a consumer was done with all.
    pub ended_at: Option<i64>,
    /// Messages that were processed.
    pub processed: u64,
    /// Messages that are still dead.
    pub failed: u64,
}

/// The newest orders, at most `limit`. Primary key, no lock.
pub async fn retries(conn: &mut MySqlConnection, limit: u32) -> Result<Vec<RetryRow>, sqlx::Error> {
    let sql = "SELECT retry_id, consumer, message_id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', ordered_at), \
               TIMESTAMPDIFF(MICROSECOND, '1970-01-01', taken_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', ended_at), \
               processed, failed FROM inbox_retries ORDER BY retry_id DESC LIMIT ?";
    let row = |row: MySqlRow| {
        Ok(RetryRow {
            retry_id: row.try_get(0)?,
            consumer: row.try_get(1)?,
            message_id: row.try_get::<Option<&[u8]>, _>(2)?.map(uuid).transpose()?,
            ordered_at: row.try_get(3)?,
            taken_at: row.try_get(4)?,
            ended_at: row.try_get(5)?,
            processed: row.try_get(6)?,
            failed: row.try_get(7)?,
        })
    };
    sqlx::query(sql).bind(limit).fetch_all(conn).await?.into_iter().map(row).collect()
}

/// An order that is not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenRetry {
    /// Its number.
    pub retry_id: u64,
    /// The last message that a consumer began with.
    pub last_id: Uuid,
    message_id: Option<Uuid>,
}

/// The first open order for a consumer, unless one of its processes works on it. Index `inbox_retries_open`, one row;
/// no lock.
pub async fn open(conn: &mut MySqlConnection, consumer: &str) -> Result<Option<OpenRetry>, sqlx::Error> {
    let sql = "SELECT retry_id, message_id, last_id, busy_until <= UTC_TIMESTAMP(6) FROM inbox_retries \
               WHERE consumer = ? AND ended_at IS NULL ORDER BY retry_id LIMIT 1";
    let Some(row) = sqlx::query(sql).bind(consumer).fetch_optional(conn).await? else { return Ok(None) };
    let message_id = row.try_get::<Option<&[u8]>, _>(1)?.map(uuid).transpose()?;
    let retry = OpenRetry { retry_id: row.try_get(0)?, last_id: uuid(row.try_get(2)?)?, message_id };
    Ok(row.try_get::<bool, _>(3)?.then_some(retry))
}

/// The next message of an order. Later gaps of a sequenced key are of the same order: while it is carried out they die
/// with each message that comes. Primary key, the rows of the consumer up to it; no lock.
pub async fn next(conn: &mut MySqlConnection, consumer: &str, retry: &OpenRetry) -> Result<Option<Uuid>, sqlx::Error> {
    let sql = "SELECT message_id FROM inbox_dead WHERE consumer = ? AND message_id > ? AND message_id <= ? \
               AND reason <> ? \
               AND (reason = 'sequence' OR died_at <= (SELECT ordered_at FROM inbox_retries WHERE retry_id = ?)) \
               ORDER BY message_id LIMIT 1";
    let last = retry.message_id.unwrap_or(Uuid::max());
    let query = sqlx::query_scalar(sql).bind(consumer).bind(retry.last_id.as_bytes().as_slice());
    let query = query.bind(last.as_bytes().as_slice()).bind(TOO_LARGE).bind(retry.retry_id);
    let id: Option<Vec<u8>> = query.fetch_optional(conn).await?;
    id.map(|id| uuid(&id)).transpose()
}

/// Begins with a message, which counts as failed until it is processed: a process that it ends does not try it again.
/// False: another process was faster. Primary key, one row.
pub async fn take(
    conn: &mut MySqlConnection,
    retry: &OpenRetry,
    message_id: Uuid,
    longest: Duration,
) -> Result<bool, sqlx::Error> {
    let sql = "UPDATE inbox_retries SET last_id = ?, failed = failed + 1, taken_at = UTC_TIMESTAMP(6), \
               busy_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE retry_id = ? AND last_id = ? \
               AND busy_until <= UTC_TIMESTAMP(6)";
    let query = sqlx::query(sql).bind(message_id.as_bytes().as_slice()).bind(micros(longest)).bind(retry.retry_id);
    Ok(query.bind(retry.last_id.as_bytes().as_slice()).execute(conn).await?.rows_affected() == 1)
}

/// Notes that a message was processed, or stays dead. Primary key, one row.
pub async fn note(conn: &mut MySqlConnection, retry_id: u64, is_processed: bool) -> Result<(), sqlx::Error> {
    let sql = "UPDATE inbox_retries SET processed = processed + ?, failed = failed - ?, busy_until = UTC_TIMESTAMP(6) \
               WHERE retry_id = ?";
    sqlx::query(sql).bind(is_processed).bind(is_processed).bind(retry_id).execute(conn).await.map(drop)
}

/// Ends an order behind whose last message there is no other. Primary key, one row.
pub async fn end(conn: &mut MySqlConnection, retry: &OpenRetry) -> Result<(), sqlx::Error> {
    let sql = "UPDATE inbox_retries SET ended_at = UTC_TIMESTAMP(6) WHERE retry_id = ? AND last_id = ?";
    sqlx::query(sql).bind(retry.retry_id).bind(retry.last_id.as_bytes().as_slice()).execute(conn).await.map(drop)
}
