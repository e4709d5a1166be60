//! Reads dead messages, for operators.

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};
use uuid::Uuid;

use super::{
    contents::uuid,
    text::{listed, sql},
};

/// A message that a relay gave up on, without key, headers and payload. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadRow {
    /// The lane.
    pub lane: u16,
    /// Its number in the tables.
    pub id: u64,
    /// The hash of its key; 0 means no order.
    pub key_hash: u64,
    /// The attempts spent.
    pub attempts: u16,
    /// When it was given up.
    pub died_at: i64,
    /// Whether later messages of its key wait for it.
    pub holds_key: bool,
    /// The reason, a short code.
    pub reason: String,
    /// The last error; empty if there is none.
    pub error: String,
    /// The id that consumers see; `None` if its row in `outbox_messages` was deleted.
    pub message_id: Option<Uuid>,
    /// The topic; empty if its row was deleted.
    pub topic: String,
}

/// The dead messages above this lane and id, at most `limit`, in this order. Primary keys, no lock.
pub async fn above(
    conn: &mut MySqlConnection,
    (lane, id): (u16, u64),
    limit: u32,
) -> Result<Vec<DeadRow>, sqlx::Error> {
    let sql = "SELECT d.lane, d.id, d.key_hash, d.attempts, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', d.died_at), d.holds_key = 1, d.reason, \
               COALESCE(d.error, ''), m.message_id, COALESCE(m.topic, '') \
               FROM outbox_dead d FORCE INDEX (PRIMARY) LEFT JOIN outbox_messages m ON m.id = d.id \
               WHERE d.lane > ? OR d.lane = ? AND d.id > ? ORDER BY d.lane, d.id LIMIT ?";
    let rows = sqlx::query(sql).bind(lane).bind(lane).bind(id).bind(limit).fetch_all(conn).await?;
    let dead = |row: &MySqlRow| {
        Ok(DeadRow {
            lane: row.try_get(0)?,
            id: row.try_get(1)?,
            key_hash: row.try_get(2)?,
            attempts: row.try_get(3)?,
            died_at: row.try_get(4)?,
            holds_key: row.try_get(5)?,
            reason: row.try_get(6)?,
            error: row.try_get(7)?,
            message_id: row.try_get::<Option<_>, _>(8)?.map(uuid).transpose()?,
            topic: row.try_get(9)?,
        })
    };
    rows.iter().map(dead).collect()
}

/// The lane of a dead message; `None` if it is not dead. A seek for each lane that has dead messages.
pub async fn lane(conn: &mut MySqlConnection, id: u64) -> Result<Option<u16>, sqlx::Error> {
    let sql = "SELECT d.lane FROM (SELECT lane FROM outbox_dead GROUP BY lane) l \
               STRAIGHT_JOIN outbox_dead d FORCE INDEX (PRIMARY) ON d.lane = l.lane AND d.id = ?";
    sqlx::query_scalar(sql).bind(id).fetch_optional(conn).await
}

/// Messages that wait behind these keys of a lane, counted up to `limit`. Ranges of `outbox_delayed_key`, no lock.
pub async fn waiting(
    conn: &mut MySqlConnection,
    lane: u16,
    key_hashes: &[u64],
    limit: u32,
) -> Result<u64, sqlx::Error> {
    let text = sql!(
        "SELECT CAST(COUNT(*) AS UNSIGNED) FROM (SELECT 1 FROM {keys}
            STRAIGHT_JOIN outbox_delayed d FORCE INDEX (outbox_delayed_key)
            ON d.lane = {lane} AND d.holds_key = 1 AND d.key_hash = l.id LIMIT {limit}) waiting",
        keys = listed(key_hashes),
        lane,
        limit,
    );
    let replies = text.run(conn).await?;
    replies.iter().flat_map(|reply| &reply.rows).map(|row| row.try_get::<u64, _>(0)).sum()
}
