//! The heartbeats of running relays and workers.

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::store::text::sql;

/// The heartbeat of a process.
#[derive(Debug, Clone, Copy)]
pub struct Beat<'a> {
    /// The name under which it holds claims.
    pub instance: &'a str,
    /// `relay` or `worker`.
    pub role: &'a str,
    /// The release of its program.
    pub version: &'a str,
    /// Its lanes as a JSON list; empty: all.
    pub lanes: &'a str,
    /// Its sinks as a JSON object: each with the reason why it takes nothing, or null.
    pub sinks: &'a str,
    /// Messages that are claimed and not settled.
    pub in_flight: u32,
    /// Which lanes it reads from the binary log, or why none; at most 500 characters are kept.
    pub tail: Option<&'a str>,
}

/// Writes a heartbeat. Primary key, one row.
pub async fn beat(conn: &mut MySqlConnection, beat: &Beat<'_>) -> Result<(), sqlx::Error> {
    let sql = "INSERT INTO outbox_instances (instance, role, version, lanes, sinks, in_flight, tail, started_at, \
               seen_at) \
               VALUES (?, ?, ?, ?, ?, ?, LEFT(?, 500), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE \
               lanes = VALUES(lanes), sinks = VALUES(sinks), in_flight = VALUES(in_flight), tail = \
               VALUES(tail), seen_at = VALUES(seen_at)";
    let query = sqlx::query(sql).bind(beat.instance).bind(beat.role).bind(beat.version).bind(beat.lanes);
    query.bind(beat.sinks).bind(beat.in_flight).bind(beat.tail).execute(conn).await.map(drop)
}

/// Notes that a process begins to count the queue. False: it has no heartbeat yet. Primary key, one row.
pub async fn begin_count(conn: &mut MySqlConnection, instance: &str) -> Result<bool, sqlx::Error> {
    let sql = "UPDATE outbox_instances SET counting_at = UTC_TIMESTAMP(6) WHERE instance = ?";
    Ok(sqlx::query(sql).bind(instance).execute(conn).await?.rows_affected() > 0)
}

/// Writes the content of the queue to the heartbeat of the process that has counted it. Primary key, one row.
pub async fn count(conn: &mut MySqlConnection, instance: &str, counted: &Counted) -> Result<(), sqlx::Error> {
    let sql = "UPDATE outbox_instances SET counts = ?, counted_at = TIMESTAMPADD(MICROSECOND, ?, '1970-01-01') \
               WHERE instance = ?";
    sqlx::query(sql).bind(&counted.counts).bind(counted.at).bind(instance).execute(conn).await.map(drop)
}

/// Deletes the heartbeat of a process that stops. Primary key, one row.
pub async fn leave(conn: &mut MySqlConnection, instance: &str) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM outbox_instances WHERE instance = ?").bind(instance).execute(conn).await.map(drop)
}

/// A running process, or one that ended without a word. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceRow {
    /// The name under which it holds claims.
    pub instance: String,
    /// `relay` or `worker`.
    pub role: String,
    /// The release of its program.
    pub version: String,
    /// Its lanes as a JSON list; empty: all.
    pub lanes: String,
    /// Its sinks as a JSON object.
    pub sinks: String,
    /// Messages that were claimed and not settled.
    pub in_flight: u32,
    /// The time of its first heartbeat.
    pub started_at: i64,
    /// The time of its last heartbeat.
    pub seen_at: i64,
    /// Microseconds since then.
    pub quiet: i64,
    /// The content of the queue, if it has counted it.
    pub counted: Option<Counted>,
    /// Microseconds since it began to count last.
    pub counting: Option<i64>,
    /// Which lanes it reads from the binary log, or why none.
    pub tail: Option<String>,
}

/// The content of the queue at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// That moment: microseconds since 1970.
    pub at: i64,
    /// The content as a JSON object, at most 1,000 characters.
    pub counts: String,
}

/// All processes, those first that were seen last. Reads the whole table, which has a row for each.
pub async fn list(conn: &mut MySqlConnection) -> Result<Vec<InstanceRow>, sqlx::Error> {
    let sql = "SELECT instance, role, version, lanes, sinks, in_flight, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', \
               started_at), \
               TIMESTAMPDIFF(MICROSECOND, '1970-01-01', seen_at), TIMESTAMPDIFF(MICROSECOND, seen_at, \
               UTC_TIMESTAMP(6)), counts, \
               TIMESTAMPDIFF(MICROSECOND, '1970-01-01', counted_at), TIMESTAMPDIFF(MICROSECOND, counting_at, \
               UTC_TIMESTAMP(6)), tail \
               FROM outbox_instances ORDER BY seen_at DESC, instance";
    let row = |row: &MySqlRow| {
        Ok(InstanceRow {
            instance: row.try_get(0)?,
            role: row.try_get(1)?,
            version: row.try_get(2)?,
            lanes: row.try_get(3)?,
            sinks: row.try_get(4)?,
            in_flight: row.try_get(5)?,
            started_at: row.try_get(6)?,
            seen_at: row.try_get(7)?,
            quiet: row.try_get(8)?,
            counted: match (row.try_get(9)?, row.try_get(10)?) {
                (Some(counts), Some(at)) => Some(Counted { at, counts }),
                _ => None,
            },
            counting: row.try_get(11)?,
            tail: row.try_get(12)?,
        })
    };
    sqlx::query(sql).fetch_all(conn).await?.iter().map(row).collect()
}

/// The last heartbeat was a day ago.
const GONE: &str = "seen_at < UTC_TIMESTAMP(6) - INTERVAL 1 DAY";
/// The pause ended a day ago, or is of a process that is gone.
const PAST: &str = "(ends_at < UTC_TIMESTAMP(6) - INTERVAL 1 DAY OR kind = 'instance' AND name NOT IN
    (SELECT CONVERT(instance USING utf8mb4) FROM outbox_instances WHERE seen_at >= UTC_TIMESTAMP(6) - INTERVAL 1 DAY))";

/// Deletes processes whose last heartbeat is a day old, and pauses that ended a day ago or are of a process that is
/// gone. Reads both tables, which have few rows.
pub async fn forget(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sql!("DELETE FROM outbox_instances WHERE {gone}", gone = GONE).run(conn).await?;
    sql!("DELETE FROM outbox_controls WHERE {past}", past = PAST).run(conn).await.map(drop)
}

/// Counts the processes and the pauses that [`forget`] deletes. Reads both tables, which have few rows; no lock.
pub async fn forgotten(conn: &mut MySqlConnection) -> Result<[u64; 2], sqlx::Error> {
    let text = sql!(
        "SELECT COUNT(*) FROM outbox_instances WHERE {gone}; SELECT COUNT(*) FROM outbox_controls WHERE {past}",
        gone = GONE,
        past = PAST,
    );
    let replies = text.run(conn).await?;
    let count = |reply: usize| match replies.get(reply).and_then(|reply| reply.rows.first()) {
        Some(row) => row.try_get::<i64, _>(0).map(i64::unsigned_abs),
        None => Err(sqlx::Error::RowNotFound),
    };
    Ok([count(0)?, count(1)?])
}
