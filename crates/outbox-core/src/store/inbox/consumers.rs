//! The consumers of the inbox, for operators.

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};
use uuid::Uuid;

/// Most rows that are counted of a consumer.
pub const COUNTED: u64 = 100_000;
/// The newest rows among which the last one of a consumer is looked for.
const NEWEST: u64 = 20_000;

/// A consumer. Times are microseconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsumerRow {
    /// Its name.
    pub consumer: String,
    /// Messages that it has processed and that the inbox remembers, counted up to [`COUNTED`]; below that without the
    /// dead ones, which the inbox remembers, too.
    pub processed: u64,
    /// When it processed the last one; `None` if that is not among the last 20,000 of all consumers.
    pub last_at: Option<i64>,
    /// Messages that it gave up on.
    pub dead: u64,
    /// When it gave up the last one.
    pub last_dead_at: Option<i64>,
    /// The time of the oldest row of the whole inbox: consumers would do again what they processed before.
    pub remembers_since: Option<i64>,
}

/// All consumers by name. Reads up to 100,000 rows of each, the last 20,000 of all, and the rows of dead messages; no
/// lock.
pub async fn consumers(conn: &mut MySqlConnection) -> Result<Vec<ConsumerRow>, sqlx::Error> {
    let dead = "SELECT d.consumer, COUNT(*), COUNT(p.consumer), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', \
                MAX(d.died_at)) \
                FROM inbox_dead d LEFT JOIN inbox_processed p FORCE INDEX (PRIMARY) \
                ON p.consumer = d.consumer AND p.message_id = d.message_id GROUP BY d.consumer";
    let dead: Vec<(String, i64, i64, Option<i64>)> = sqlx::query_as(dead).fetch_all(&mut *conn).await?;
    let last = "SELECT consumer, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MAX(processed_at)) FROM \
                (SELECT consumer, processed_at FROM inbox_processed WHERE processed_at < '9000-01-01' \
                ORDER BY processed_at DESC LIMIT ?) newest GROUP BY consumer";
    let last: Vec<(String, Option<i64>)> = sqlx::query_as(last).bind(NEWEST).fetch_all(&mut *conn).await?;
    let names =
        "SELECT consumer FROM inbox_processed GROUP BY consumer UNION SELECT consumer FROM inbox_dead ORDER BY 1";
    let names: Vec<String> = sqlx::query_scalar(names).fetch_all(&mut *conn).await?;
    let since = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(processed_at)) FROM inbox_processed";
    let remembers_since: Option<i64> = sqlx::query_scalar(since).fetch_one(&mut *conn).await?;
    let mut consumers = Vec::new();
    for consumer in names {
        let count = "SELECT COUNT(*) FROM (SELECT 1 FROM inbox_processed WHERE consumer = ? LIMIT ?) counted";
        let count: i64 = sqlx::query_scalar(count).bind(&consumer).bind(COUNTED).fetch_one(&mut *conn).await?;
        let dead = dead.iter().find(|(name, ..)| *name == consumer);
        let remembered = dead.filter(|_| count.unsigned_abs() < COUNTED).map_or(0, |(_, _, remembered, _)| *remembered);
        consumers.push(ConsumerRow {
            processed: count.saturating_sub(remembered).max(0).unsigned_abs(),
            last_at: last.iter().find(|(name, _)| *name == consumer).and_then(|(_, at)| *at),
            dead: dead.map_or(0, |(_, count, ..)| count.unsigned_abs()),
            last_dead_at: dead.and_then(|(.., at)| *at),
            remembers_since,
            consumer,
        });
    }
    Ok(consumers)
}

/// The outcome of a message at a consumer. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeRow {
    /// The consumer.
    pub consumer: String,
    /// When the message was processed, or given up.
    pub at: i64,
    /// Why it was given up, and the error; `None` if it was processed.
    pub dead: Option<(String, String)>,
}

/// The outcomes of a message at all consumers. A seek for each consumer; no lock.
pub async fn outcomes(conn: &mut MySqlConnection, message_id: Uuid) -> Result<Vec<OutcomeRow>, sqlx::Error> {
    let sql = "SELECT p.consumer, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', p.processed_at), FALSE, '', '' FROM \
               (SELECT consumer FROM inbox_processed GROUP BY consumer) c \
               STRAIGHT_JOIN inbox_processed p FORCE INDEX (PRIMARY) ON p.consumer = c.consumer AND p.message_id = ? \
               WHERE NOT EXISTS (SELECT 1 FROM inbox_dead d WHERE d.consumer = p.consumer \
               AND d.message_id = p.message_id) \
               UNION ALL SELECT d.consumer, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', d.died_at), TRUE, d.reason, \
               COALESCE(d.error, '') FROM \
               (SELECT consumer FROM inbox_dead GROUP BY consumer) c \
               STRAIGHT_JOIN inbox_dead d FORCE INDEX (PRIMARY) ON d.consumer = c.consumer AND d.message_id = ? \
               ORDER BY 1, 2";
    let id = message_id.as_bytes().as_slice();
    let rows: Vec<(String, i64, bool, String, String)> = sqlx::query_as(sql).bind(id).bind(id).fetch_all(conn).await?;
    let row = |(consumer, at, is_dead, reason, error)| OutcomeRow {
        consumer,
        at,
        dead: Some((reason, error)).filter(|_| is_dead),
    };
    Ok(rows.into_iter().map(row).collect())
}

/// A message that a consumer gave up on. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadRow {
    /// The consumer.
    pub consumer: String,
    /// The message.
    pub message_id: Uuid,
    /// Its topic or queue.
    pub topic: String,
    /// The attempts that were spent.
    pub attempts: u32,
    /// When it was given up.
    pub died_at: i64,
    /// Why.
    pub reason: String,
    /// The error.
    pub error: String,
}

/// The newest messages that consumers gave up on, of one consumer and for one reason if they are given, at most
/// `limit`. Looks at the newest 20,000; no lock.
pub async fn dead(
    conn: &mut MySqlConnection,
    (consumer, reason): (Option<&str>, Option<&str>),
    limit: u32,
) -> Result<Vec<DeadRow>, sqlx::Error> {
    let sql = "SELECT consumer, message_id, topic, attempts, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', died_at), \
               reason, \
               COALESCE(error, '') FROM (SELECT consumer, message_id, topic, attempts, died_at, reason, error \
               FROM inbox_dead FORCE INDEX (inbox_dead_died_at) ORDER BY died_at DESC LIMIT ?) newest \
               WHERE consumer = COALESCE(?, consumer) AND reason = COALESCE(?, reason) ORDER BY died_at DESC LIMIT ?";
    let query = sqlx::query(sql).bind(NEWEST).bind(consumer).bind(reason).bind(limit);
    let row = |row: MySqlRow| {
        Ok(DeadRow {
            consumer: row.try_get(0)?,
            message_id: Uuid::from_slice(row.try_get(1)?).unwrap_or_default(),
            topic: row.try_get(2)?,
            attempts: row.try_get(3)?,
            died_at: row.try_get(4)?,
            reason: row.try_get(5)?,
            error: row.try_get(6)?,
        })
    };
    query.fetch_all(conn).await?.into_iter().map(row).collect()
}
