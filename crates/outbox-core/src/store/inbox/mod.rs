//! The inbox: the messages that a consumer has processed.

pub mod consumers;
pub mod purge;
pub mod retries;

use sqlx::{MySqlConnection, Row as _};
use uuid::Uuid;

use crate::store::{DUPLICATE_ENTRY, NO_SUCH_SAVEPOINT, contents, error_number};
use crate::{Contents, SequenceNumber, Statement};

/// Opens a transaction with the mark that [`release`] looks for, in one round trip. Its session is the service's, and
/// keeps these settings: no cut answer, no other end than the one asked for, the true time, no end of a transaction
/// while its handler works, and no wait for a locked table that outlasts the consumer's deadline of 60 s: a server does
/// not notice that the client has left. Other time limits are the service's own.
pub const BEGIN: &str = "SET SESSION sql_select_limit = 18446744073709551615, SESSION completion_type = 0, timestamp = \
                         DEFAULT, SESSION lock_wait_timeout = CAST(LEAST(@@SESSION.lock_wait_timeout, 50) AS UNSIGNED) \
                         /*M! , SESSION idle_transaction_timeout = 0, SESSION idle_readonly_transaction_timeout = 0, \
                         SESSION idle_write_transaction_timeout = 0 */; START TRANSACTION READ WRITE; SAVEPOINT \
                         outbox_inbox";

/// Whether the transaction that was opened with [`BEGIN`] is still the same. False: the server has ended it in between,
/// after a deadlock, a DDL statement, or a COMMIT of other code. Locks nothing.
pub async fn release(conn: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
    match sqlx::raw_sql("RELEASE SAVEPOINT outbox_inbox").execute(conn).await {
        Ok(_) => Ok(true),
        Err(error) if error_number(&error) == Some(NO_SUCH_SAVEPOINT) => Ok(false),
        Err(error) => Err(error),
    }
}

const PROCESSED: &str =
    "INSERT INTO inbox_processed (consumer, message_id, processed_at) VALUES (?, ?, UTC_TIMESTAMP(6))";

/// As [`insert`], for other libraries.
pub(crate) fn statement(consumer: &str, message_id: Uuid) -> Statement {
    Statement { sql: PROCESSED, binds: vec![consumer.into(), message_id.as_bytes().as_slice().into()] }
}

/// Notes that a consumer has processed a message; false: it had already. Primary key, one row. Waits while another
/// transaction holds the same pair; the end of that one decides.
pub async fn insert(conn: &mut MySqlConnection, consumer: &str, message_id: Uuid) -> Result<bool, sqlx::Error> {
    mark(conn, PROCESSED, consumer, message_id).await
}

/// As [`insert`], for a message that goes to `inbox_dead`. No purge deletes this mark: as long as the dead message can
/// be retried, a late delivery of it must be a duplicate.
pub async fn insert_dead_mark(
    conn: &mut MySqlConnection,
    consumer: &str,
    message_id: Uuid,
) -> Result<bool, sqlx::Error> {
    let sql = "INSERT INTO inbox_processed (consumer, message_id, processed_at) VALUES (?, ?, '9999-12-31')";
    mark(conn, sql, consumer, message_id).await
}

/// Dates the mark of a dead message at present: from now on it is one of a processed message. False: a later delivery
/// of the message has been processed. Primary keys of both tables; one row.
pub async fn redate_mark(conn: &mut MySqlConnection, consumer: &str, message_id: Uuid) -> Result<bool, sqlx::Error> {
    if insert(conn, consumer, message_id).await? {
        return Ok(true);
    }
    let sql = "UPDATE inbox_processed SET processed_at = UTC_TIMESTAMP(6) WHERE consumer = ? AND message_id = ? \
               AND processed_at > UTC_TIMESTAMP(6) + INTERVAL 1 DAY";
    let query = sqlx::query(sql).bind(consumer).bind(message_id.as_bytes().as_slice());
    Ok(query.execute(conn).await?.rows_affected() == 1)
}

async fn mark(
    conn: &mut MySqlConnection,
    sql: &'static str,
    consumer: &str,
    message_id: Uuid,
) -> Result<bool, sqlx::Error> {
    match sqlx::query(sql).bind(consumer).bind(message_id.as_bytes().as_slice()).execute(conn).await {
        Ok(_) => Ok(true),
        Err(error) if error_number(&error) == Some(DUPLICATE_ENTRY) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A message that a consumer gives up on.
#[derive(Debug, Clone, Copy)]
pub struct DeadDelivery<'a> {
    /// The consumer.
    pub consumer: &'a str,
    /// The message id.
    pub message_id: Uuid,
    /// Its contents.
    pub contents: &'a Contents,
    /// The number of attempts.
    pub attempts: u32,
    /// The reason, in one word.
    pub reason: &'a str,
    /// The error text; at most 500 characters are kept.
    pub error: &'a str,
}

/// The reason of a dead message whose payload is not kept.
pub(in crate::store) const TOO_LARGE: &str = "too_large";
/// A message of fewer bytes fits into a request: no server in use has a `max_allowed_packet` below 1 MiB.
const ALWAYS_FITS: usize = 512 << 10;
/// The most bytes of the request besides key, headers and payload, rounded up: names, types, reason, error text.
const REST: usize = 16 << 10;

/// Keeps a message that a consumer gives up on. Primary key, one row. A second one of the same id replaces nothing.
///
/// A message that is larger than `max_allowed_packet` is kept without its payload, with the reason `too_large`; if need
/// be, also without key and headers. The server would refuse the whole, and its partition or queue would stop.
pub async fn insert_dead(conn: &mut MySqlConnection, dead: &DeadDelivery<'_>) -> Result<(), sqlx::Error> {
    // MariaDB's SQL mode EMPTY_STRING_IS_NULL takes an empty bind for NULL.
    let sql = "INSERT IGNORE INTO inbox_dead (consumer, message_id, topic, message_key, event_type, content_type, \
               headers, \
               payload, attempts, died_at, reason, error) \
               VALUES (?, ?, ?, IF(?, x'', ?), ?, ?, ?, IF(?, x'', ?), ?, UTC_TIMESTAMP(6), ?, ?)";
    let Contents { topic, key, event_type, content_type, headers, payload } = dead.contents;
    let mut key = key.as_deref();
    let mut headers = contents::headers_to_json(headers);
    let mut payload = payload.as_deref();
    let mut reason = dead.reason;
    let mut error = dead.error.to_owned();
    let size = |key: Option<&[u8]>, headers: &Option<String>| {
        key.map_or(0, <[u8]>::len) + headers.as_ref().map_or(0, String::len) + REST
    };
    let bytes = size(key, &headers) + payload.map_or(0, <[u8]>::len);
    if bytes > ALWAYS_FITS {
        let limit = usize::try_from(crate::store::enqueue::max_allowed_packet(conn).await?).unwrap_or(usize::MAX);
        if bytes > limit {
            error = format!("{reason}, and not kept: max_allowed_packet is {limit} bytes. {error}");
            (reason, payload) = (TOO_LARGE, None);
            if size(key, &headers) > limit {
                (key, headers) = (None, None);
            }
        }
    }
    // The server would cut them only when it has the whole text.
    let cut = |text: &str, characters| text.chars().take(characters).collect::<String>();
    let query = sqlx::query(sql).bind(dead.consumer).bind(dead.message_id.as_bytes().as_slice());
    let is_empty = |value: Option<&[u8]>| value.is_some_and(<[u8]>::is_empty);
    let query =
        query.bind(cut(topic, 255)).bind(is_empty(key)).bind(key).bind(event_type.as_ref().map(|it| cut(it, 255)));
    let query =
        query.bind(content_type.as_ref().map(|it| cut(it, 255))).bind(headers).bind(is_empty(payload)).bind(payload);
    query.bind(dead.attempts).bind(reason).bind(cut(&error, 500)).execute(conn).await.map(drop)
}

/// A message that a consumer has given up on, as it is kept.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The message id.
    pub message_id: Uuid,
    /// Its contents, without headers that cannot be read.
    pub contents: Contents,
    /// The number of attempts.
    pub attempts: u32,
}

/// The first dead message of a consumer behind this id, locked. Messages that another transaction has locked are left
/// out, and those with the reason `too_large`. Primary key; one row, and those that are left out.
pub async fn lock_dead(conn: &mut MySqlConnection, consumer: &str, after: Uuid) -> Result<Option<Kept>, sqlx::Error> {
    let sql = "SELECT message_id, topic, message_key, event_type, content_type, headers, payload, attempts \
               FROM inbox_dead \
               WHERE consumer = ? AND message_id > ? AND reason <> ? ORDER BY message_id LIMIT 1 \
               FOR UPDATE SKIP LOCKED";
    let query = sqlx::query(sql).bind(consumer).bind(after.as_bytes().as_slice()).bind(TOO_LARGE);
    let row = query.fetch_optional(conn).await?;
    row.map(|row| {
        Ok(Kept {
            message_id: contents::uuid(row.try_get(0)?)?,
            contents: contents::of(&row, 1)?.0,
            attempts: row.try_get(7)?,
        })
    })
    .transpose()
}

/// Whether a message of a consumer is dead. Primary key, one row; no lock.
pub async fn is_dead(conn: &mut MySqlConnection, consumer: &str, message_id: Uuid) -> Result<bool, sqlx::Error> {
    let sql = "SELECT 1 FROM inbox_dead WHERE consumer = ? AND message_id = ?";
    let query = sqlx::query(sql).bind(consumer).bind(message_id.as_bytes().as_slice());
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Deletes a dead message of a consumer. Primary key, one row.
pub async fn delete_dead(conn: &mut MySqlConnection, consumer: &str, message_id: Uuid) -> Result<(), sqlx::Error> {
    let sql = "DELETE FROM inbox_dead WHERE consumer = ? AND message_id = ?";
    sqlx::query(sql).bind(consumer).bind(message_id.as_bytes().as_slice()).execute(conn).await.map(drop)
}

/// How often processes have started to work on a message and not reported an end. Primary key, one row.
pub async fn starts(conn: &mut MySqlConnection, consumer: &str, message_id: Uuid) -> Result<u32, sqlx::Error> {
    let sql = "SELECT starts FROM inbox_started WHERE consumer = ? AND message_id = ?";
    let query = sqlx::query_scalar(sql).bind(consumer).bind(message_id.as_bytes().as_slice());
    Ok(query.fetch_optional(conn).await?.unwrap_or_default())
}

/// Counts a start. Primary key, one row.
pub async fn note_start(conn: &mut MySqlConnection, consumer: &str, message_id: Uuid) -> Result<(), sqlx::Error> {
    let sql = "INSERT INTO inbox_started (consumer, message_id, starts, started_at) VALUES (?, ?, 1, UTC_TIMESTAMP(6)) \
               ON DUPLICATE KEY UPDATE starts = starts + 1, started_at = UTC_TIMESTAMP(6)";
    sqlx::query(sql).bind(consumer).bind(message_id.as_bytes().as_slice()).execute(conn).await.map(drop)
}

/// Sets the number of starts to an earlier one; 0 forgets the message. Primary key, one row.
pub async fn set_starts(
    conn: &mut MySqlConnection,
    consumer: &str,
    message_id: Uuid,
    starts: u32,
) -> Result<(), sqlx::Error> {
    let id = message_id.as_bytes().as_slice();
    if starts > 0 {
        let sql = "UPDATE inbox_started SET starts = ? WHERE consumer = ? AND message_id = ?";
        return sqlx::query(sql).bind(starts).bind(consumer).bind(id).execute(conn).await.map(drop);
    }
    let sql = "DELETE FROM inbox_started WHERE consumer = ? AND message_id = ?";
    sqlx::query(sql).bind(consumer).bind(id).execute(conn).await.map(drop)
}

/// Forgets the starts that are older than a week: another process has ended the work of their messages. Reads the rows
/// of the consumer.
pub async fn forget_old_starts(conn: &mut MySqlConnection, consumer: &str) -> Result<(), sqlx::Error> {
    let sql = "DELETE FROM inbox_started WHERE consumer = ? AND started_at < UTC_TIMESTAMP(6) - INTERVAL 7 DAY";
    sqlx::query(sql).bind(consumer).execute(conn).await.map(drop)
}

/// A sequenced key of a consumer.
#[derive(Debug, Clone, Copy)]
pub struct SequencedKey<'a> {
    /// The consumer.
    pub consumer: &'a str,
    /// The topic.
    pub topic: &'a str,
    /// The key.
    pub key: &'a [u8],
}

/// Notes a number if it is the next one of its key and epoch; false: it is not, or the key is new. Primary key, one
/// row.
pub async fn advance(
    conn: &mut MySqlConnection,
    place: SequencedKey<'_>,
    SequenceNumber { epoch, number }: SequenceNumber,
) -> Result<bool, sqlx::Error> {
    let sql = "UPDATE inbox_sequence SET sequence = ?, seen_at = UTC_TIMESTAMP(6) \
               WHERE consumer = ? AND topic = ? AND message_key = ? AND sequence > 0 AND sequence + 1 = ? \
               AND epoch = ?";
    let query = sqlx::query(sql).bind(number).bind(place.consumer).bind(place.topic).bind(place.key);
    Ok(query.bind(number).bind(epoch).execute(conn).await?.rows_affected() == 1)
}

/// The highest number of a key, its epoch, and its gaps as JSON. Creates the row if it is missing, and locks it.
/// Primary key, one row. The insert comes before the read: to read a missing row would lock a gap that other keys are
/// inserted into.
pub async fn lock_sequence(
    conn: &mut MySqlConnection,
    place: SequencedKey<'_>,
) -> Result<(u64, u64, String), sqlx::Error> {
    let sql =
        "INSERT IGNORE INTO inbox_sequence (consumer, topic, message_key, sequence, missing) VALUES (?, ?, ?, 0, '[]')";
    sqlx::query(sql).bind(place.consumer).bind(place.topic).bind(place.key).execute(&mut *conn).await?;
    let sql = "SELECT sequence, epoch, missing FROM inbox_sequence WHERE consumer = ? AND topic = ? \
               AND message_key = ? FOR UPDATE";
    sqlx::query_as(sql).bind(place.consumer).bind(place.topic).bind(place.key).fetch_one(conn).await
}

/// Updates the row that [`lock_sequence`] has locked. Primary key, one row.
pub async fn write_sequence(
    conn: &mut MySqlConnection,
    place: SequencedKey<'_>,
    highest: SequenceNumber,
    missing: &str,
) -> Result<(), sqlx::Error> {
    let sql = "UPDATE inbox_sequence SET sequence = ?, epoch = ?, missing = ?, seen_at = UTC_TIMESTAMP(6) \
               WHERE consumer = ? AND topic = ? AND message_key = ?";
    let query = sqlx::query(sql)
        .bind(highest.number)
        .bind(highest.epoch)
        .bind(missing)
        .bind(place.consumer)
        .bind(place.topic)
        .bind(place.key);
    query.execute(conn).await.map(drop)
}
