//! The content of the queue, for gauges and `relay status`.

use std::collections::BTreeMap;

use sqlx::{MySqlConnection, Row as _};

/// The content of the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Unsent messages that are due, claimed ones included.
    pub pending: u64,
    /// Of these, claimed. A claim whose list was made unreadable by hand covers none.
    pub leased: u64,
    /// Messages that wait for a time.
    pub delayed: u64,
    /// Messages that the relay gave up on.
    pub dead: u64,
    /// Keys that a delayed or dead message holds back.
    pub blocked_keys: u64,
    /// Claims whose lease has passed and that no relay has taken over.
    pub expired_leases: u64,
    /// Age of the oldest due message, in microseconds.
    pub lag_micros: u64,
}

/// Counts the queue. Reads the primary key of `outbox_pending` (narrow: about 0.1 s for a million rows), the claims, and two
/// indexes; no lock. Not for the hot path.
pub async fn stats(conn: &mut MySqlConnection) -> Result<Stats, sqlx::Error> {
    let sql = "SELECT (SELECT COUNT(*) FROM outbox_pending), \
        (SELECT CAST(COALESCE(SUM(IF(JSON_VALID(message_ids), JSON_LENGTH(message_ids), 0)), 0) AS UNSIGNED) FROM outbox_claims \
         WHERE lease_until >= UTC_TIMESTAMP(6)), \
        (SELECT COUNT(*) FROM outbox_delayed), (SELECT COUNT(*) FROM outbox_dead), \
        (SELECT COUNT(DISTINCT key_hash) FROM outbox_delayed WHERE holds_key = 1) \
         + (SELECT COUNT(DISTINCT key_hash) FROM outbox_dead WHERE holds_key = 1), \
        (SELECT COUNT(*) FROM outbox_claims WHERE lease_until < UTC_TIMESTAMP(6)), \
        (SELECT TIMESTAMPDIFF(MICROSECOND, m.created_at, UTC_TIMESTAMP(6)) FROM outbox_messages m \
         WHERE m.id = (SELECT MIN(p.id) FROM (SELECT MIN(id) AS id FROM outbox_pending GROUP BY lane) p))";
    let row = sqlx::query(sql).fetch_one(conn).await?;
    let count = |column: usize| row.try_get::<i64, _>(column).map(i64::unsigned_abs);
    Ok(Stats {
        pending: count(0)?,
        leased: row.try_get(1)?,
        delayed: count(2)?,
        dead: count(3)?,
        blocked_keys: count(4)?,
        expired_leases: count(5)?,
        lag_micros: u64::try_from(row.try_get::<Option<i64>, _>(6)?.unwrap_or(0)).unwrap_or(0),
    })
}

/// A lane as operators see it. Times are microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// The lane.
    pub lane: u16,
    /// Messages that are due, claimed ones included.
    pub pending: u64,
    /// For how long the one with the lowest id has been due.
    pub lag: i64,
    /// Owners with a live claim.
    pub owners: u64,
    /// Claims whose lease has passed and that no relay has taken over.
    pub expired_leases: u64,
    /// Since when no message was sent, among the last thousand receipts of all lanes.
    pub quiet: Option<i64>,
    /// Messages of these receipts in the last ten seconds.
    pub sent: u64,
    /// Messages that wait, by reason, each with the error of one of them.
    pub delayed: Vec<(String, u64, String)>,
    /// Messages that the relays gave up on.
    pub dead: u64,
}

/// Counts each lane that has messages or was served lately, in one snapshot. Reads the primary keys of pending and dead rows, all
/// delayed rows, the live claims and a thousand receipts; no lock. If it fails, end the connection: its transaction is open.
pub async fn lanes(conn: &mut MySqlConnection) -> Result<Vec<LaneStats>, sqlx::Error> {
    let snapshot =
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";
    sqlx::raw_sql(snapshot).execute(&mut *conn).await?;
    let mut lanes: BTreeMap<u16, LaneStats> = BTreeMap::new();
    let sql = "SELECT p.lane, p.messages, COALESCE(TIMESTAMPDIFF(MICROSECOND, GREATEST(m.created_at, COALESCE(m.due_at, m.created_at)), \
               UTC_TIMESTAMP(6)), 0) FROM (SELECT lane, CAST(COUNT(*) AS UNSIGNED) AS messages, MIN(id) AS id FROM outbox_pending \
               GROUP BY lane) p LEFT JOIN outbox_messages m ON m.id = p.id";
    for row in sqlx::query(sql).fetch_all(&mut *conn).await? {
        let lane = of(&mut lanes, row.try_get(0)?);
        (lane.pending, lane.lag) = (row.try_get(1)?, row.try_get(2)?);
    }
    let sql = "SELECT lane, reason, CAST(COUNT(*) AS UNSIGNED), COALESCE(MAX(error), '') FROM outbox_delayed GROUP BY lane, reason \
               ORDER BY COUNT(*) DESC";
    for row in sqlx::query(sql).fetch_all(&mut *conn).await? {
        let reason = (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
        of(&mut lanes, row.try_get(0)?).delayed.push(reason);
    }
    let sql = "SELECT lane, CAST(COUNT(*) AS UNSIGNED) FROM outbox_dead GROUP BY lane";
    for row in sqlx::query(sql).fetch_all(&mut *conn).await? {
        of(&mut lanes, row.try_get(0)?).dead = row.try_get(1)?;
    }
    let sql = "SELECT lane, CAST(COUNT(DISTINCT IF(lease_until >= UTC_TIMESTAMP(6), owner, NULL)) AS UNSIGNED), \
               CAST(SUM(lease_until < UTC_TIMESTAMP(6)) AS UNSIGNED) FROM outbox_claims GROUP BY lane";
    for row in sqlx::query(sql).fetch_all(&mut *conn).await? {
        let lane = of(&mut lanes, row.try_get(0)?);
        (lane.owners, lane.expired_leases) = (row.try_get(1)?, row.try_get(2)?);
    }
    let sql = "SELECT lane, TIMESTAMPDIFF(MICROSECOND, MAX(sent_at), UTC_TIMESTAMP(6)), CAST(COALESCE(SUM(IF(sent_at > UTC_TIMESTAMP(6) \
               - INTERVAL 10 SECOND AND JSON_VALID(message_ids), JSON_LENGTH(message_ids), 0)), 0) AS UNSIGNED) FROM \
               (SELECT lane, sent_at, message_ids FROM outbox_sent ORDER BY receipt_id DESC LIMIT 1000) s GROUP BY lane";
    for row in sqlx::query(sql).fetch_all(&mut *conn).await? {
        let lane = of(&mut lanes, row.try_get(0)?);
        (lane.quiet, lane.sent) = (Some(row.try_get(1)?), row.try_get(2)?);
    }
    sqlx::raw_sql("COMMIT").execute(conn).await?;
    Ok(lanes.into_values().collect())
}

fn of(lanes: &mut BTreeMap<u16, LaneStats>, lane: u16) -> &mut LaneStats {
    lanes.entry(lane).or_insert_with(|| LaneStats { lane, ..LaneStats::default() })
}
