//! Promotes delayed messages that are due: moves them to pending.

use std::time::Duration;

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::store::{
    claim::tail,
    enqueue::micros,
    text::{listed, sql},
};

/// A delayed message that is due, or due soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayedRow {
    /// The lane.
    pub lane: u16,
    /// The message.
    pub id: u64,
    /// How long it has to wait; zero if it is due.
    pub wait: Duration,
}

/// Delayed messages that are due before `within` has passed, the longest due first. Index `outbox_delayed_due`, in its
/// order: at most `limit` rows, however many are due. No lock.
pub async fn due(conn: &mut MySqlConnection, within: Duration, limit: u32) -> Result<Vec<DelayedRow>, sqlx::Error> {
    let sql = "SELECT lane, id, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) FROM outbox_delayed \
               WHERE due_at <= UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND ORDER BY due_at, lane, id LIMIT ?";
    let rows = sqlx::query(sql).bind(micros(within)).bind(limit).fetch_all(conn).await?;
    let due = |row: &MySqlRow| {
        let micros: i64 = row.try_get(2)?;
        let wait = Duration::from_micros(u64::try_from(micros).unwrap_or(0));
        Ok(DelayedRow { lane: row.try_get(0)?, id: row.try_get(1)?, wait })
    };
    rows.iter().map(due).collect()
}

/// Moves delayed messages of one lane to pending; returns how many. Raises the lane's version, so that no claim is made
/// on an earlier look, and lowers `low`, so that looks include the rows. A row that was put back by hand is pending
/// already. One round trip; locks the head (so two relays do not promote the same rows at once) and these rows.
///
/// A row may come back into `outbox_delayed` between the two statements: another relay has promoted and claimed it, and
/// is settling its failure. So only rows that are pending, read with a lock, are deleted: the others are in no other
/// table.
pub async fn promote(conn: &mut MySqlConnection, lane: u16, ids: &[u64]) -> Result<u64, sqlx::Error> {
    put_back(conn, lane, ids, "").await
}

/// [`promote`] of these rows, if they are still due: a row that another relay has promoted may have failed meanwhile,
/// and wait again.
pub async fn promote_due(conn: &mut MySqlConnection, lane: u16, ids: &[u64]) -> Result<u64, sqlx::Error> {
    put_back(conn, lane, ids, " AND d.due_at <= UTC_TIMESTAMP(6)").await
}

/// [`promote`] of rows that still meet a condition, ` AND …` of `d`.
pub(in crate::store) async fn put_back(
    conn: &mut MySqlConnection,
    lane: u16,
    ids: &[u64],
    condition: &'static str,
) -> Result<u64, sqlx::Error> {
    let text = sql!(
        "BEGIN; UPDATE outbox_head SET version = {raised}, claimer = 0, low = LEAST(low, {smallest})
            WHERE lane = {lane};
        INSERT IGNORE INTO outbox_pending (lane, id, key_hash, bytes, attempts)
            SELECT d.lane, d.id, d.key_hash, d.bytes, d.attempts FROM {ids}
            STRAIGHT_JOIN outbox_delayed d FORCE INDEX (PRIMARY) ON d.id = l.id{condition} AND d.lane = {lane};
        DELETE d FROM {ids}
            STRAIGHT_JOIN outbox_delayed d FORCE INDEX (PRIMARY) ON d.id = l.id{condition} AND d.lane = {lane}
            STRAIGHT_JOIN outbox_pending p FORCE INDEX (PRIMARY) ON p.lane = d.lane AND p.id = d.id; COMMIT",
        raised = tail::RAISED,
        smallest = ids.iter().copied().min().unwrap_or(0),
        lane,
        ids = listed(ids),
        condition,
    );
    let replies = text.run(conn).await?;
    Ok(replies.get(3).map_or(0, |reply| reply.done.rows_affected()))
}
