//! Deletes rows that are older than their retention, in chunks by primary key.

use std::{collections::HashSet, time::Duration};

use sqlx::{Connection as _, MySqlConnection, Row as _, mysql::MySqlRow};

use super::{
    claim::ids_from_json,
    enqueue::micros,
    read::id_list,
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
/// names one message under slow traffic, and a thousand otherwise. Primary keys; one transaction.
pub async fn sent(conn: &mut MySqlConnection, age: Duration, messages: usize) -> Result<(u64, u64), sqlx::Error> {
    let (mut receipts, mut ids) = (Vec::new(), Vec::new());
    for receipt in old_receipts(conn, age, 0, 50).await? {
        if ids.len() >= messages {
            break;
        }
        let Some(named) = receipt.ids else { continue };
        receipts.push(receipt.receipt_id);
        ids.extend(named.into_iter().map(|id| (receipt.lane, id)));
    }
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
    /// The messages; `None` if the list cannot be read.
    pub ids: Option<Vec<u64>>,
}

/// Of the first `limit` receipts above a number, those that are older than this. Leaves out lists that are no JSON array. Primary key,
/// no lock.
pub async fn old_receipts(
    conn: &mut MySqlConnection,
    age: Duration,
    above: u64,
    limit: u32,
) -> Result<Vec<OldReceipt>, sqlx::Error> {
    // Receipts are nearly in the order of their age: those behind `limit` young ones can wait until one of these is old.
    let sql = "SELECT receipt_id, message_ids, lane, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', sent_at) FROM \
               (SELECT receipt_id, message_ids, lane, sent_at FROM outbox_sent WHERE receipt_id > ? \
               AND IF(JSON_VALID(message_ids), JSON_TYPE(message_ids), '') = 'ARRAY' ORDER BY receipt_id LIMIT ?) AS oldest \
               WHERE sent_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND ORDER BY receipt_id";
    let receipt = |row: &MySqlRow| {
        Ok(OldReceipt {
            receipt_id: row.try_get(0)?,
            lane: row.try_get(2)?,
            sent_at: row.try_get(3)?,
            ids: ids_from_json(row.try_get(1)?).ok(),
        })
    };
    let query = sqlx::query(sql).bind(above).bind(limit).bind(micros(age));
    query.fetch_all(conn).await?.iter().map(receipt).collect()
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

/// Deletes dead messages that died longer ago than this; returns how many. One that holds its key stays: only an operator lets its key
/// go on. At most `limit`, of one lane, locked first: one that an operator is putting back at the moment is left out. Reads the dead messages; primary keys; one transaction.
pub async fn dead(conn: &mut MySqlConnection, age: Duration, limit: u32) -> Result<u64, sqlx::Error> {
    let sql = "SELECT lane, id FROM outbox_dead WHERE holds_key = 0 \
               AND died_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND ORDER BY lane, id LIMIT ? FOR UPDATE SKIP LOCKED";
    let mut tx = conn.begin().await?;
    let rows: Vec<(u16, u64)> = sqlx::query_as(sql).bind(micros(age)).bind(limit).fetch_all(&mut *tx).await?;
    let Some((lane, _)) = rows.first().copied() else { return tx.rollback().await.map(|()| 0) };
    let ids: Vec<u64> = rows.iter().take_while(|row| row.0 == lane).map(|row| row.1).collect();
    // One statement: a Galera node that rolls back in the middle of a text and goes on would delete the message of a row that an
    // operator puts back.
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

/// Counts dead messages that died longer ago than this and hold no key, among the first `most` of all. Primary key, as many rows; no lock.
pub async fn old_dead(conn: &mut MySqlConnection, age: Duration, most: u32) -> Result<OldRows, sqlx::Error> {
    let sql = "SELECT COUNT(*), COUNT(old_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(old_at)) FROM \
               (SELECT IF(holds_key = 0 AND died_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND, died_at, NULL) AS old_at \
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
