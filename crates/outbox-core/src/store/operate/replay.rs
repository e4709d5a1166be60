//! Finds sent messages, for operators who want them sent again.

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};
use uuid::Uuid;

use crate::store::{
    claim::ids_from_json,
    contents::uuid,
    text::{Text, listed, sql},
};

/// A receipt: messages of one lane that were settled together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentRow {
    /// Its claim. A key is sent in the order of its claims, which need not be that of the receipts.
    pub claim_id: u64,
    /// The lane.
    pub lane: u16,
    /// The time of the claim: microseconds since 1970.
    pub claimed_at: i64,
    /// The time of the settlement.
    pub sent_at: i64,
    /// The messages; empty if the list cannot be read.
    pub ids: Vec<u64>,
}

/// The receipts of the claims above a number, at most about `limit`, in the order of claims. Those of one claim come
/// together: a number may have been given twice, see `store::claim`. Index `outbox_sent_claim`, no lock. Two round trips.
pub async fn receipts(conn: &mut MySqlConnection, above: u64, limit: u32) -> Result<Vec<SentRow>, sqlx::Error> {
    // Not in one statement: MariaDB would read all entries above the number.
    let sql = "SELECT CAST(COALESCE(MAX(claim_id), 0) AS UNSIGNED) FROM (SELECT claim_id FROM outbox_sent \
               FORCE INDEX (outbox_sent_claim) WHERE claim_id > ? ORDER BY claim_id LIMIT ?) page";
    let last: u64 = sqlx::query_scalar(sql).bind(above).bind(limit).fetch_one(&mut *conn).await?;
    let sql = "SELECT claim_id, lane, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', claimed_at), \
               TIMESTAMPDIFF(MICROSECOND, '1970-01-01', sent_at), message_ids \
               FROM outbox_sent FORCE INDEX (outbox_sent_claim) \
               WHERE claim_id > ? AND claim_id <= ? ORDER BY claim_id, lease_token";
    let receipt = |row: &MySqlRow| {
        Ok(SentRow {
            claim_id: row.try_get(0)?,
            lane: row.try_get(1)?,
            claimed_at: row.try_get(2)?,
            sent_at: row.try_get(3)?,
            ids: ids_from_json(row.try_get(4)?).unwrap_or_default(),
        })
    };
    sqlx::query(sql).bind(above).bind(last).fetch_all(conn).await?.iter().map(receipt).collect()
}

/// The number above which claims are of this time or later, and the last number that has a receipt. A few dozen reads
/// of one row.
pub async fn bounds(conn: &mut MySqlConnection, since: i64) -> Result<(u64, u64), sqlx::Error> {
    let sql = "SELECT CAST(COALESCE(MIN(claim_id), 0) AS UNSIGNED), CAST(COALESCE(MAX(claim_id), 0) AS UNSIGNED) \
               FROM outbox_sent";
    let (first, last): (u64, u64) = sqlx::query_as(sql).fetch_one(&mut *conn).await?;
    let mut low = first.saturating_sub(1);
    let mut high = last;
    while low < high {
        let middle = low + (high - low) / 2;
        match receipts(conn, middle, 1).await?.first() {
            Some(receipt) if receipt.claimed_at < since => low = receipt.claim_id,
            _ => high = middle,
        }
    }
    Ok((low, last))
}

/// The claim of the last receipt of a message. Reads all receipts.
pub async fn claim_of(conn: &mut MySqlConnection, id: u64) -> Result<Option<u64>, sqlx::Error> {
    let sql = "SELECT claim_id FROM outbox_sent WHERE message_ids LIKE CONCAT('%', ?, '%') \
               AND JSON_CONTAINS(IF(JSON_VALID(message_ids), message_ids, '[]'), CAST(? AS CHAR)) \
               ORDER BY receipt_id DESC LIMIT 1";
    sqlx::query_scalar(sql).bind(id).bind(id).fetch_optional(conn).await
}

/// The time of the first receipt of a message: microseconds since 1970. Reads all receipts.
pub async fn first_sent(conn: &mut MySqlConnection, id: u64) -> Result<Option<i64>, sqlx::Error> {
    let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(sent_at)) FROM outbox_sent \
               WHERE message_ids LIKE CONCAT('%', ?, '%') \
               AND JSON_CONTAINS(IF(JSON_VALID(message_ids), message_ids, '[]'), CAST(? AS CHAR))";
    sqlx::query_scalar(sql).bind(id).bind(id).fetch_one(conn).await
}

/// Microseconds since 1970, by the database's clock.
pub async fn now(conn: &mut MySqlConnection) -> Result<i64, sqlx::Error> {
    let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
    sqlx::query_scalar(sql).fetch_one(conn).await
}

/// A message that was sent, without key, headers and payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentMessage {
    /// Its number in the tables.
    pub id: u64,
    /// The id that consumers see.
    pub message_id: Uuid,
    /// The topic.
    pub topic: String,
    /// The kind of event.
    pub event_type: Option<String>,
    /// The time of its first replay: microseconds since 1970. Claims from then on are of replays, out of the order of
    /// its key.
    pub replayed_at: Option<i64>,
}

/// Of these messages of a lane, those that are there, are not unsent again, and were not replayed by this job. Primary
/// keys, no lock.
pub async fn sent(
    conn: &mut MySqlConnection,
    lane: u16,
    ids: &[u64],
    job_id: u64,
) -> Result<Vec<SentMessage>, sqlx::Error> {
    let text = sql!(
        "SELECT m.id, m.message_id, m.topic, m.event_type,
                TIMESTAMPDIFF(MICROSECOND, '1970-01-01', r.first_at) FROM {ids}
            STRAIGHT_JOIN outbox_messages m FORCE INDEX (PRIMARY) ON m.id = l.id
            LEFT JOIN outbox_pending p ON p.lane = {lane} AND p.id = l.id LEFT JOIN outbox_delayed d ON d.lane = {lane}
                AND d.id = l.id
            LEFT JOIN outbox_dead x ON x.lane = {lane} AND x.id = l.id LEFT JOIN outbox_replays r ON r.id = l.id
            WHERE p.id IS NULL AND d.id IS NULL AND x.id IS NULL AND NOT r.job_id <=> {job_id} ORDER BY m.id",
        ids = listed(ids),
        lane,
        job_id,
    );
    let message = |row: &MySqlRow| {
        Ok(SentMessage {
            id: row.try_get(0)?,
            message_id: uuid(row.try_get(1)?)?,
            topic: row.try_get(2)?,
            event_type: row.try_get(3)?,
            replayed_at: row.try_get(4)?,
        })
    };
    text.run(conn).await?.iter().flat_map(|reply| &reply.rows).map(message).collect()
}

/// The columns of the pending row of a message that is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Again {
    /// Its lane.
    pub lane: u16,
    /// The message.
    pub id: u64,
    /// The hash of its key in this job, 0 if it has none.
    pub key_hash: u64,
    /// The bytes of key, headers and payload.
    pub bytes: u32,
}

/// Reads these columns for messages of one lane, which this job is to send again. Primary key, no lock.
///
/// The key is one of the job: its messages keep their order among each other, and a copy that fails holds up no message
/// that is new.
pub async fn again(conn: &mut MySqlConnection, lane: u16, ids: &[u64], job_id: u64) -> Result<Vec<Again>, sqlx::Error> {
    let text = sql!(
        "SELECT m.id, m.topic, m.message_key, CAST(LEAST(COALESCE(LENGTH(m.message_key),
            0) + COALESCE(LENGTH(m.headers), 0)
            + COALESCE(LENGTH(m.payload), 0), 4294967295) AS UNSIGNED) FROM {ids}
            STRAIGHT_JOIN outbox_messages m FORCE INDEX (PRIMARY) ON m.id = l.id ORDER BY m.id",
        ids = listed(ids),
    );
    let again = |row: &MySqlRow| {
        let (topic, key): (&str, Option<&[u8]>) = (row.try_get(1)?, row.try_get(2)?);
        let bytes = u32::try_from(row.try_get::<u64, _>(3)?).unwrap_or(u32::MAX);
        Ok(Again { lane, id: row.try_get(0)?, key_hash: crate::key_hash(&format!("{job_id} {topic}"), key), bytes })
    };
    text.run(conn).await?.iter().flat_map(|reply| &reply.rows).map(again).collect()
}

/// A table `v` of messages to begin a join with.
pub(in crate::store) fn values(messages: &[Again]) -> Text {
    let row = |it: &Again| {
        sql!("[{lane},{id},{key_hash},{bytes}]", lane = it.lane, id = it.id, key_hash = it.key_hash, bytes = it.bytes)
    };
    sql!(
        "JSON_TABLE('[{rows}]', '$[*]' COLUMNS (lane SMALLINT UNSIGNED PATH '$[0]', id BIGINT UNSIGNED PATH '$[1]',
            key_hash BIGINT UNSIGNED PATH '$[2]', bytes BIGINT UNSIGNED PATH '$[3]')) v",
        rows = Text::joined(messages.iter().map(row), ","),
    )
}
