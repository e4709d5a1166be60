//! The content of the queue, for gauges and `relay status`.

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
    /// Owners with a live claim.
    pub owners: u64,
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
         WHERE m.id = (SELECT MIN(p.id) FROM (SELECT MIN(id) AS id FROM outbox_pending GROUP BY lane) p)), \
        (SELECT COUNT(DISTINCT owner) FROM outbox_claims WHERE lease_until >= UTC_TIMESTAMP(6))";
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
        owners: count(7)?,
    })
}
