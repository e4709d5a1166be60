//! Writing messages, on the service's connection and in its transaction.

use std::sync::{Arc, LazyLock};

use sqlx::{AssertSqlSafe, MySqlConnection, Row as _, mysql::MySqlArguments, query::Query};

use super::{NO_SUCH_SAVEPOINT, TRANSACTION_OPEN, error_number};
use crate::message::{Due, Message};

/// Rows of one INSERT: a few sizes, so that a connection's cache of prepared statements (100 in sqlx) holds them all.
const SIZES: [usize; 5] = [256, 64, 16, 4, 1];

const MESSAGE_ROW: &str = "(?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)";
const ID: &str = "LAST_INSERT_ID() + ? * @@auto_increment_increment";

static INSERT_MESSAGES: LazyLock<[Arc<str>; 5]> = LazyLock::new(|| {
    let head = "INSERT INTO outbox_messages \
        (message_id, topic, message_key, event_type, content_type, headers, payload, created_at, expires_at) VALUES ";
    SIZES.map(|rows| insert(head, MESSAGE_ROW, rows))
});

static INSERT_PENDING: LazyLock<[Arc<str>; 5]> = LazyLock::new(|| {
    let head = "INSERT INTO outbox_pending (id, lane, key_hash, bytes) VALUES ";
    SIZES.map(|rows| insert(head, &format!("({ID}, ?, ?, ?)"), rows))
});

static INSERT_SCHEDULED: LazyLock<[Arc<str>; 5]> = LazyLock::new(|| {
    let head = "INSERT INTO outbox_delayed (id, lane, key_hash, bytes, due_at, reason) VALUES ";
    // One expression for "in so many microseconds" and "at this time": the first operand is null in the second case.
    let due = "COALESCE(UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, '1970-01-01' + INTERVAL ? MICROSECOND)";
    SIZES.map(|rows| insert(head, &format!("({ID}, ?, ?, ?, {due}, 'scheduled')"), rows))
});

fn insert(head: &str, row: &str, rows: usize) -> Arc<str> {
    format!("{head}{}", vec![row; rows].join(", ")).into()
}

/// Sets a savepoint and returns to it at once, in one round trip: an error says that the server has no transaction, whatever
/// the client believes. Without one SAVEPOINT is a no-op. Returns whether there is one.
///
/// With `autocommit = 0` a savepoint needs no transaction: then the server is asked, in one round trip more, whether one is open.
///
/// The savepoint stays, so that [`undo`] can take back a message that was written without its pending row.
pub async fn savepoint(conn: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
    let text = "SAVEPOINT outbox_enqueue; ROLLBACK TO SAVEPOINT outbox_enqueue; SELECT CAST(@@autocommit AS SIGNED)";
    match sqlx::raw_sql(text).fetch_one(&mut *conn).await {
        Ok(row) if row.try_get::<i64, _>(0)? == 0 => is_open(conn).await,
        Ok(_) => Ok(true),
        Err(error) if error_number(&error) == Some(NO_SUCH_SAVEPOINT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the server has an open transaction: only outside of one it lets the next one's kind be chosen. Locks nothing.
async fn is_open(conn: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
    match sqlx::raw_sql("SET TRANSACTION READ WRITE").execute(conn).await {
        Ok(_) => Ok(false),
        Err(error) if error_number(&error) == Some(TRANSACTION_OPEN) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Takes back what was written since [`savepoint`].
pub async fn undo(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("ROLLBACK TO SAVEPOINT outbox_enqueue").execute(conn).await.map(drop)
}

/// The largest packet that the server takes, in bytes.
pub async fn max_allowed_packet(conn: &mut MySqlConnection) -> Result<u64, sqlx::Error> {
    sqlx::query_scalar("SELECT CAST(@@max_allowed_packet AS UNSIGNED)").fetch_one(conn).await
}

/// Whether a message with this id exists. Primary use: to name the guilty one after a duplicate-key error.
/// Index `outbox_messages_message_id`, no lock, one row.
pub async fn exists(conn: &mut MySqlConnection, message: &Message) -> Result<bool, sqlx::Error> {
    let sql = "SELECT 1 FROM outbox_messages WHERE message_id = ?";
    let found = sqlx::query(sql).bind(message.message_id.as_bytes().as_slice()).fetch_optional(conn).await?;
    Ok(found.is_some())
}

/// How many of the first rows fit into one INSERT: one of the fixed sizes, and together at most `bytes`, but at least one row.
#[must_use]
pub fn chunk(messages: &[Message], bytes: usize) -> usize {
    let fits = |size: usize| {
        let rows = messages.get(..size);
        rows.is_some_and(|rows| rows.iter().map(Message::size).sum::<usize>() <= bytes)
    };
    SIZES.into_iter().find(|&size| fits(size)).unwrap_or(1)
}

/// Inserts messages (as many as [`chunk`] said), then what makes them due. The rows of one INSERT, whose number is known
/// beforehand, get ids that are `auto_increment_increment` apart, from `LAST_INSERT_ID()` on.
/// Locks only the new rows; the second INSERT goes to the end of its primary key.
pub async fn insert_messages(
    conn: &mut MySqlConnection,
    messages: &[Message],
    headers: &[Option<String>],
) -> Result<(), sqlx::Error> {
    let mut query = statement(&INSERT_MESSAGES, messages.len());
    for (message, headers) in messages.iter().zip(headers) {
        query = query
            .bind(message.message_id.as_bytes().as_slice())
            .bind(&message.topic)
            .bind(message.key.as_deref())
            .bind(message.event_type.as_deref())
            .bind(message.content_type.as_deref())
            .bind(headers.as_deref())
            .bind(message.payload.as_deref())
            .bind(message.expires.map(micros));
    }
    query.execute(&mut *conn).await?;
    let (due, scheduled): (Vec<_>, Vec<_>) = (0u64..).zip(messages).partition(|(_, message)| message.due == Due::Now);
    insert_pending(conn, &due).await?;
    insert_scheduled(conn, &scheduled).await
}

async fn insert_pending(conn: &mut MySqlConnection, mut rows: &[(u64, &Message)]) -> Result<(), sqlx::Error> {
    while let Some((chunk, rest)) = split(rows) {
        let mut query = statement(&INSERT_PENDING, chunk.len());
        for (position, message) in chunk {
            query = query.bind(*position).bind(message.lane).bind(message.key_hash()).bind(bytes(message));
        }
        query.execute(&mut *conn).await?;
        rows = rest;
    }
    Ok(())
}

async fn insert_scheduled(conn: &mut MySqlConnection, mut rows: &[(u64, &Message)]) -> Result<(), sqlx::Error> {
    while let Some((chunk, rest)) = split(rows) {
        let mut query = statement(&INSERT_SCHEDULED, chunk.len());
        for (position, message) in chunk {
            query = query.bind(*position).bind(message.lane).bind(message.key_hash()).bind(bytes(message));
            let (after, at) = message.due.micros();
            query = query.bind(after).bind(at);
        }
        query.execute(&mut *conn).await?;
        rows = rest;
    }
    Ok(())
}

fn split<T>(rows: &[T]) -> Option<(&[T], &[T])> {
    let size = SIZES.into_iter().find(|&size| size <= rows.len())?;
    rows.split_at_checked(size)
}

fn statement(texts: &[Arc<str>; 5], rows: usize) -> Query<'static, sqlx::MySql, MySqlArguments> {
    let text = SIZES.iter().zip(texts).find(|(size, _)| **size == rows).map(|(_, text)| text);
    sqlx::query(AssertSqlSafe(text.map_or_else(|| "".into(), Arc::clone)))
}

pub(super) fn bytes(message: &Message) -> u32 {
    u32::try_from(message.size()).unwrap_or(u32::MAX)
}

pub(crate) fn micros(time: std::time::Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_a_fixed_size_within_the_limit_of_bytes() {
        let messages: Vec<_> = (0..70).map(|_| Message::new("t", [0; 100])).collect();
        assert_eq!(chunk(&messages, 1_000_000), 64);
        assert_eq!(chunk(&messages, 1_700), 16);
        assert_eq!(chunk(&messages, 10), 1);
        assert_eq!(chunk(&messages[..3], 1_000_000), 1);
    }
}
