//! The queue of a key: its messages behind one that waits, or beyond the number that may be in flight.
//!
//! Rows of a queue are in `outbox_delayed` without a date, and no promotion by time touches them. A relay that has sent
//! a message of the key promotes the next ones. It needs no proof that no message holds the key, because each look
//! checks that.

use sqlx::{MySqlConnection, Row as _};

use crate::store::text::sql;

/// The date of a row in a queue.
pub(crate) const UNDATED: &str = "TIMESTAMP'9999-12-31 00:00:00'";

/// The next messages in the queue of a key, above the id `from`, at most `limit`. They end before the first message
/// that waits for a time, or is dead and holds the key. Ranges of `outbox_delayed_key` and `outbox_dead_key`, at most
/// `limit` rows, no lock.
pub async fn next(
    conn: &mut MySqlConnection,
    (lane, key_hash): (u16, u64),
    from: u64,
    limit: u32,
) -> Result<Vec<u64>, sqlx::Error> {
    let text = sql!(
        "SELECT MIN(id) FROM outbox_dead FORCE INDEX (outbox_dead_key)
            WHERE lane = {lane} AND holds_key = 1 AND key_hash = {key_hash};
        SELECT id, due_at = {undated} FROM outbox_delayed FORCE INDEX (outbox_delayed_key)
            WHERE lane = {lane} AND holds_key = 1 AND key_hash = {key_hash} AND id > {from} ORDER BY id LIMIT {limit}",
        lane,
        key_hash,
        undated = UNDATED,
        from,
        limit,
    );
    let replies = text.run(conn).await?;
    let mut ids = Vec::new();
    let mut end = u64::MAX;
    for (statement, row) in replies.iter().enumerate().flat_map(|(i, reply)| reply.rows.iter().map(move |row| (i, row)))
    {
        if statement == 0 {
            end = row.try_get::<Option<u64>, _>(0)?.unwrap_or(end);
        } else if row.try_get(0).is_ok_and(|id: u64| id < end) && row.try_get(1)? {
            ids.push(row.try_get(0)?);
        } else {
            break;
        }
    }
    Ok(ids)
}

/// [`crate::store::claim::promote::promote`] of these rows, if they are still in a queue: a row that has failed meanwhile has a date.
pub async fn promote(conn: &mut MySqlConnection, lane: u16, ids: &[u64]) -> Result<u64, sqlx::Error> {
    crate::store::claim::promote::put_back(conn, lane, ids, " AND d.due_at = TIMESTAMP'9999-12-31 00:00:00'").await
}

/// The first lane from this one on that has a queue. One seek in `outbox_delayed_due`, no lock.
pub async fn lane(conn: &mut MySqlConnection, from: u16) -> Result<Option<u16>, sqlx::Error> {
    let sql = "SELECT lane FROM outbox_delayed FORCE INDEX (outbox_delayed_due) \
               WHERE due_at = TIMESTAMP'9999-12-31 00:00:00' AND lane >= ? ORDER BY lane LIMIT 1";
    sqlx::query_scalar(sql).bind(from).fetch_optional(conn).await
}

/// Most rows that [`keys`] reads.
const KEYS: u32 = 200;

/// Some keys above `above` that messages hold back, each with whether the first of these is in the queue, behind no
/// dead one. The list is empty if there are no more. A range of `outbox_delayed_key`, 200 rows, each with a seek in
/// `outbox_dead_key`; no lock.
pub async fn keys(conn: &mut MySqlConnection, lane: u16, above: u64) -> Result<Vec<(u64, bool)>, sqlx::Error> {
    let sql = "SELECT key_hash, due_at = TIMESTAMP'9999-12-31 00:00:00' AND NOT EXISTS (SELECT 1 \
               FROM outbox_dead x FORCE INDEX (outbox_dead_key) \
               WHERE x.lane = d.lane AND x.holds_key = 1 AND x.key_hash = d.key_hash AND x.id < d.id) \
               FROM outbox_delayed d FORCE INDEX (outbox_delayed_key) \
               WHERE lane = ? AND holds_key = 1 AND key_hash > ? ORDER BY key_hash, id LIMIT ?";
    let mut keys: Vec<(u64, bool)> = sqlx::query_as(sql).bind(lane).bind(above).bind(KEYS).fetch_all(conn).await?;
    keys.dedup_by_key(|(key, _)| *key);
    Ok(keys)
}
