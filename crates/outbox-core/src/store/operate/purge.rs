//! Deletes rows that are older than their retention, in chunks by primary key.

use std::{collections::HashSet, time::Duration};

use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, Row as _};

use crate::store::{
    claim::{ids_from_json, read::id_list},
    enqueue::micros,
    text::{Text, listed, sql},
};

/// The name of the lease of the relay that purges.
pub const LEASE_NAME: &str = "outbox/purge";
/// The pause after a chunk is this many times its duration, and leaves the server to the services. [`LONGEST_REST`]
/// limits it where round trips or the disk are slow: the purge must keep up with new rows.
const REST: u32 = 9;
const SHORTEST_REST: Duration = Duration::from_millis(50);
const LONGEST_REST: Duration = Duration::from_millis(250);

/// Returns the pause after a chunk that took this long.
#[must_use]
pub fn rest(took: Duration) -> Duration {
    (took * REST).clamp(SHORTEST_REST, LONGEST_REST)
}

/// Deletes the oldest receipts that are older than this, with their messages; returns the number of each. Deletes only
/// messages that a receipt names, except those that are to be sent again. A receipt with an unreadable list stays, with
/// its messages. Takes at most fifty receipts, and no further one once they name this number of `messages`. A receipt
/// names one message under slow traffic, and a thousand otherwise. Looks at receipts above a number, and raises it
/// above those that stay. Primary keys; one transaction.
pub async fn sent(
    conn: &mut MySqlConnection,
    age: Duration,
    above: &mut u64,
    messages: usize,
) -> Result<(u64, u64), sqlx::Error> {
    let mut receipts = Vec::new();
    let mut ids = Vec::new();
    let page = old_receipts(conn, age, *above, 50).await?;
    for receipt in page.old {
        if ids.len() >= messages {
            break;
        }
        receipts.push(receipt.receipt_id);
        ids.extend(receipt.ids.into_iter().map(|id| (receipt.lane, id)));
    }
    *above = page.stay;
    if receipts.is_empty() {
        return Ok((0, 0));
    }
    ids.sort_unstable();
    let unsent = unsent(conn, &ids).await?;
    let mut ids: Vec<u64> = ids.into_iter().map(|(_, id)| id).filter(|id| !unsent.contains(id)).collect();
    ids.sort_unstable();
    let text = sql!(
        "BEGIN; DELETE FROM outbox_sent WHERE {receipts}; DELETE FROM outbox_messages WHERE {messages};
            DELETE FROM outbox_replays WHERE {messages}; DELETE FROM outbox_attempts WHERE {messages}; COMMIT",
        receipts = id_list("receipt_id", &receipts),
        messages = id_list("id", &ids),
    );
    let replies = text.run(conn).await?;
    let rows = |reply: usize| replies.get(reply).map_or(0, |reply| reply.done.rows_affected());
    Ok((rows(1), rows(2)))
}

/// A receipt that is older than its retention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldReceipt {
    /// Its number.
    pub receipt_id: u64,
    /// The lane.
    pub lane: u16,
    /// The time of the settlement: microseconds since 1970.
    pub sent_at: i64,
    /// The messages.
    pub ids: Vec<u64>,
}

/// Some receipts, in the order of their numbers.
#[derive(Debug, Default)]
pub struct ReceiptPage {
    /// Those that are older than their retention.
    pub old: Vec<OldReceipt>,
    /// The number of the last one.
    pub last: u64,
    /// Those up to this number stay: their lists cannot be read, or their times are in the future.
    pub stay: u64,
    /// Whether those behind can wait: the table ends, or one is young. Receipts are nearly in the order of their age.
    pub is_end: bool,
}

/// Reads the first `limit` receipts above a number. Primary key, as many rows; no lock.
pub async fn old_receipts(
    conn: &mut MySqlConnection,
    age: Duration,
    above: u64,
    limit: u32,
) -> Result<ReceiptPage, sqlx::Error> {
    let sql = "SELECT receipt_id, IF(sent_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND, message_ids, NULL), lane, \
               TIMESTAMPDIFF(MICROSECOND, '1970-01-01', sent_at), sent_at <= UTC_TIMESTAMP(6) FROM outbox_sent \
               WHERE receipt_id > ? ORDER BY receipt_id LIMIT ?";
    let rows = sqlx::query(sql).bind(micros(age)).bind(above).bind(limit).fetch_all(conn).await?;
    let mut page =
        ReceiptPage { last: above, stay: above, is_end: rows.len() < limit as usize, ..ReceiptPage::default() };
    let mut all_stay = true;
    for row in &rows {
        let (receipt_id, list, is_past): (u64, Option<String>, bool) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(4)?);
        let ids = list.as_deref().map(ids_from_json);
        let is_young = ids.is_none() && is_past;
        page.is_end |= is_young;
        page.last = receipt_id;
        if let Some(Ok(ids)) = ids {
            page.old.push(OldReceipt { receipt_id, lane: row.try_get(2)?, sent_at: row.try_get(3)?, ids });
        }
        all_stay = all_stay && !is_young && page.old.is_empty();
        if all_stay {
            page.stay = receipt_id;
        }
    }
    Ok(page)
}

/// Of these messages, sorted by lane and id, those that are to be sent again. Primary keys, no lock.
pub async fn unsent(conn: &mut MySqlConnection, messages: &[(u16, u64)]) -> Result<HashSet<u64>, sqlx::Error> {
    // 0 is no id: this selects no row, and gives the column the right type.
    let mut parts = vec![sql!("SELECT id FROM outbox_pending WHERE lane = 0 AND id = 0")];
    for chunk in messages.chunk_by(|a, b| a.0 == b.0) {
        let lane = chunk.first().map(|(lane, _)| *lane);
        let ids: Vec<u64> = chunk.iter().map(|(_, id)| *id).collect();
        parts.extend(["outbox_pending", "outbox_delayed", "outbox_dead"].map(|table| {
            sql!("SELECT id FROM {table} WHERE lane = {lane} AND {ids}", table, lane, ids = id_list("id", &ids))
        }));
    }
    let replies = Text::joined(parts, " UNION ALL ").run(conn).await?;
    replies.iter().flat_map(|reply| &reply.rows).map(|row| row.try_get(0)).collect()
}

/// Deletes dead messages that died longer ago than this; returns how many. One that holds its key stays: only an
/// operator lets its key go on. At most `limit`, of one lane, locked first: one that an operator is putting back at the
/// moment is left out. Reads the dead messages; primary keys; one transaction.
pub async fn dead(conn: &mut MySqlConnection, age: Duration, limit: u32) -> Result<u64, sqlx::Error> {
    let sql = "SELECT lane, id FROM outbox_dead WHERE holds_key = 0 \
               AND died_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND ORDER BY lane, id LIMIT ? \
               FOR UPDATE SKIP LOCKED";
    let mut tx = conn.begin().await?;
    let rows: Vec<(u16, u64)> = sqlx::query_as(sql).bind(micros(age)).bind(limit).fetch_all(&mut *tx).await?;
    let Some((lane, _)) = rows.first().copied() else { return tx.rollback().await.map(|()| 0) };
    let ids: Vec<u64> = rows.iter().take_while(|row| row.0 == lane).map(|row| row.1).collect();
    // One statement: a Galera node that rolls back in the middle of a text and goes on would delete the message of a
    // row that an operator puts back.
    let text = sql!(
        "DELETE d, m, r, a FROM {ids}
            STRAIGHT_JOIN outbox_dead d FORCE INDEX (PRIMARY) ON d.id = l.id AND d.lane = {lane}
            LEFT JOIN outbox_messages m FORCE INDEX (PRIMARY) ON m.id = d.id
            LEFT JOIN outbox_replays r FORCE INDEX (PRIMARY) ON r.id = d.id
            LEFT JOIN outbox_attempts a FORCE INDEX (PRIMARY) ON a.id = d.id",
        ids = listed(&ids),
        lane,
    );
    text.run(&mut tx).await?;
    tx.commit().await?;
    Ok(ids.len() as u64)
}

/// Deletes inbox rows older than this; returns how many. Index `inbox_processed_at`, at most `limit` rows.
pub async fn inbox(conn: &mut MySqlConnection, age: Duration, limit: u32) -> Result<u64, sqlx::Error> {
    let sql = "DELETE FROM inbox_processed WHERE processed_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND \
               ORDER BY processed_at LIMIT ?";
    Ok(sqlx::query(sql).bind(micros(age)).bind(limit).execute(conn).await?.rows_affected())
}

/// Jobs `j` that ended longer ago than this.
const OLD_JOBS: &str = "outbox_jobs j FORCE INDEX (outbox_jobs_open)
    WHERE j.ended_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND";

/// Deletes jobs that ended longer ago than this, at most `limit`; returns how many. Index `outbox_jobs_open`, without a
/// lock; then primary keys.
pub async fn jobs(conn: &mut MySqlConnection, age: Duration, limit: u32) -> Result<u64, sqlx::Error> {
    let sql = format!("SELECT j.job_id FROM {OLD_JOBS} ORDER BY j.ended_at LIMIT ?");
    let ids = sqlx::query_scalar(AssertSqlSafe(sql)).bind(micros(age)).bind(limit).fetch_all(&mut *conn).await?;
    delete(conn, "outbox_jobs", "job_id", ids).await
}

/// Deletes rows of the audit that are older than this, at most `limit`; returns how many. Reads the table by its
/// primary key, without a lock; then primary keys.
pub async fn audit(conn: &mut MySqlConnection, age: Duration, limit: u32) -> Result<u64, sqlx::Error> {
    let sql = "SELECT audit_id FROM outbox_audit WHERE at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND \
               ORDER BY audit_id LIMIT ?";
    let ids = sqlx::query_scalar(sql).bind(micros(age)).bind(limit).fetch_all(&mut *conn).await?;
    delete(conn, "outbox_audit", "audit_id", ids).await
}

/// Deletes rows by their primary key; returns how many.
async fn delete(
    conn: &mut MySqlConnection,
    table: &'static str,
    key: &'static str,
    mut ids: Vec<u64>,
) -> Result<u64, sqlx::Error> {
    if ids.is_empty() {
        return Ok(0);
    }
    ids.sort_unstable();
    let replies = sql!("DELETE FROM {table} WHERE {ids}", table, ids = id_list(key, &ids)).run(conn).await?;
    Ok(replies.first().map_or(0, |reply| reply.done.rows_affected()))
}

/// Rows that are older than their retention.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OldRows {
    /// Their number.
    pub rows: u64,
    /// The time of the oldest: microseconds since 1970.
    pub oldest: Option<i64>,
    /// Whether all were counted.
    pub is_complete: bool,
}

impl OldRows {
    fn of((read, rows, oldest): (i64, i64, Option<i64>), most: u32) -> Self {
        Self { rows: rows.unsigned_abs(), oldest, is_complete: read.unsigned_abs() < u64::from(most) }
    }
}

/// Counts dead messages that died longer ago than this and hold no key, among the first `most` of all. Primary key, as
/// many rows; no lock.
pub async fn old_dead(conn: &mut MySqlConnection, age: Duration, most: u32) -> Result<OldRows, sqlx::Error> {
    let sql = "SELECT COUNT(*), COUNT(old_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(old_at)) FROM \
               (SELECT IF(holds_key = 0 AND died_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND, died_at, \
               NULL) AS old_at \
               FROM outbox_dead FORCE INDEX (PRIMARY) ORDER BY lane, id LIMIT ?) looked_at";
    let counts = sqlx::query_as(sql).bind(micros(age)).bind(most).fetch_one(conn).await?;
    Ok(OldRows::of(counts, most))
}

/// Counts inbox rows older than this, up to `most`. Index `inbox_processed_at`, as many rows; no lock.
pub async fn old_inbox(conn: &mut MySqlConnection, age: Duration, most: u32) -> Result<OldRows, sqlx::Error> {
    let sql = "SELECT COUNT(*), COUNT(*), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(processed_at)) FROM \
               (SELECT processed_at FROM inbox_processed FORCE INDEX (inbox_processed_at) \
               WHERE processed_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND ORDER BY processed_at LIMIT ?) counted";
    let counts = sqlx::query_as(sql).bind(micros(age)).bind(most).fetch_one(conn).await?;
    Ok(OldRows::of(counts, most))
}

/// Counts jobs that [`jobs`] deletes, up to `most`. The same reads.
pub async fn old_jobs(conn: &mut MySqlConnection, age: Duration, most: u32) -> Result<OldRows, sqlx::Error> {
    let sql = format!(
        "SELECT COUNT(*), COUNT(*), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(ended_at)) FROM \
         (SELECT j.ended_at FROM {OLD_JOBS} ORDER BY j.ended_at LIMIT ?) counted"
    );
    let counts = sqlx::query_as(AssertSqlSafe(sql)).bind(micros(age)).bind(most).fetch_one(conn).await?;
    Ok(OldRows::of(counts, most))
}

/// Counts rows of the audit that are older than this, among the first `most`. Primary key, as many rows; no lock.
pub async fn old_audit(conn: &mut MySqlConnection, age: Duration, most: u32) -> Result<OldRows, sqlx::Error> {
    let sql = "SELECT COUNT(*), COUNT(old_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(old_at)) FROM \
               (SELECT IF(at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND, at, NULL) AS old_at \
               FROM outbox_audit ORDER BY audit_id LIMIT ?) looked_at";
    let counts = sqlx::query_as(sql).bind(micros(age)).bind(most).fetch_one(conn).await?;
    Ok(OldRows::of(counts, most))
}
