//! Lists messages of all states, for operators.

use std::collections::HashMap;

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::Contents;
use crate::store::{
    contents,
    operate::{
        find::{self, MessageRow, StateRow},
        jobs::{Actor, record},
    },
    text::{Hex, Ids, Text, sql},
};

/// The conditions that messages must meet. A condition that is `None` admits all.
#[derive(Debug, Clone, Copy, Default)]
pub struct WantedMessages<'a> {
    /// The topic.
    pub topic: Option<&'a str>,
    /// The hashes of the key in each topic, see [`crate::key_hash`].
    pub key_hashes: Option<&'a [u64]>,
    /// The kind of event.
    pub event_type: Option<&'a str>,
    /// The earliest time of the enqueue, in microseconds since 1970.
    pub since: Option<i64>,
    /// The time before which it was.
    pub until: Option<i64>,
}

/// The next rows below an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListStep {
    /// Their lowest id.
    pub low: u64,
    /// Their highest id.
    pub high: u64,
    /// Their number.
    pub rows: u64,
}

/// The hash of the key of a message, 0 if it has none; `None`: it is not there. Primary key, no lock.
pub async fn hash_of(conn: &mut MySqlConnection, id: u64) -> Result<Option<u64>, sqlx::Error> {
    let sql = "SELECT CAST(key_hash AS UNSIGNED) FROM outbox_listed_messages WHERE id = ?";
    sqlx::query_scalar(sql).bind(id).fetch_optional(conn).await
}

/// The topics of the newest thousand messages, and of some thousand that wait or are dead. Seeks by primary key; no lock.
pub async fn topics(conn: &mut MySqlConnection) -> Result<Vec<String>, sqlx::Error> {
    let sql = "SELECT topic FROM (SELECT topic FROM outbox_messages ORDER BY id DESC LIMIT 1000) newest UNION \
               SELECT m.topic FROM (SELECT id FROM (SELECT id FROM outbox_delayed LIMIT 1000) d UNION ALL \
               SELECT id FROM (SELECT id FROM outbox_dead LIMIT 1000) x) unsent STRAIGHT_JOIN outbox_messages m \
               ON m.id = unsent.id";
    sqlx::query_scalar(sql).fetch_all(conn).await
}

/// The next rows below an id, at most this many. Primary key, no lock.
pub async fn step(conn: &mut MySqlConnection, below: u64, rows: u32) -> Result<ListStep, sqlx::Error> {
    let sql = "SELECT CAST(COALESCE(MIN(id), 0) AS UNSIGNED), CAST(COALESCE(MAX(id), 0) AS UNSIGNED), \
               CAST(COUNT(*) AS UNSIGNED) \
               FROM (SELECT id FROM outbox_messages WHERE id < ? ORDER BY id DESC LIMIT ?) step";
    let (low, high, rows) = sqlx::query_as(sql).bind(below).bind(rows).fetch_one(conn).await?;
    Ok(ListStep { low, high, rows })
}

/// A message, and its state at the same moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRow {
    /// Its number in the tables.
    pub id: u64,
    /// Its row in `outbox_messages`.
    pub message: MessageRow,
    /// Its row of a state; `None` if it is no longer in the queue.
    pub state: Option<StateRow>,
    /// The relay that has claimed it.
    pub owner: Option<String>,
}

/// Of the messages from one id to below another, those that are as wanted, at most `limit`, the newest first. One
/// snapshot, no lock: the primary key, a seek per message, lane and table of a state, and the claims. If it fails, end
/// the connection: its transaction is open.
pub async fn between(
    conn: &mut MySqlConnection,
    range: (u64, u64),
    wanted: &WantedMessages<'_>,
    limit: u32,
) -> Result<Vec<ListedRow>, sqlx::Error> {
    find::snapshot(conn).await?;
    let found = matching(conn, range, wanted, limit).await?;
    let ids: Vec<u64> = found.iter().map(|(id, _)| *id).collect();
    let mut states: HashMap<_, _> = find::states(conn, &ids).await?.into_iter().collect();
    let mut owners = claimed(conn, &ids).await?;
    sqlx::raw_sql("COMMIT").execute(conn).await?;
    let row = |(id, message)| ListedRow { id, message, state: states.remove(&id), owner: owners.remove(&id) };
    Ok(found.into_iter().map(row).collect())
}

async fn matching(
    conn: &mut MySqlConnection,
    (from, below): (u64, u64),
    wanted: &WantedMessages<'_>,
    limit: u32,
) -> Result<Vec<(u64, MessageRow)>, sqlx::Error> {
    let time = |micros: i64| sql!("TIMESTAMPADD(MICROSECOND, {micros}, '1970-01-01')", micros);
    // As bytes: a column in ASCII cannot be compared with any text.
    let conditions = [
        wanted.topic.map(|topic| sql!(" AND CAST(topic AS BINARY) = {topic}", topic = Hex(topic.as_bytes()))),
        wanted.key_hashes.map(|hashes| sql!(" AND key_hash IN ({hashes})", hashes = Ids(hashes))),
        wanted.event_type.map(|kind| sql!(" AND CAST(event_type AS BINARY) = {kind}", kind = Hex(kind.as_bytes()))),
        wanted.since.map(|since| sql!(" AND created_at >= {since}", since = time(since))),
        wanted.until.map(|until| sql!(" AND created_at < {until}", until = time(until))),
    ];
    let text = sql!(
        "SELECT id, message_id, topic, event_type, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at),
            TIMESTAMPDIFF(MICROSECOND, '1970-01-01', due_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', expires_at)
            FROM outbox_listed_messages WHERE id >= {from} AND id < {below}{conditions} ORDER BY id DESC LIMIT {limit}",
        from,
        below,
        conditions = Text::joined(conditions.into_iter().flatten(), ""),
        limit,
    );
    let message = |row: &MySqlRow| Ok((row.try_get(0)?, MessageRow::of(row, 1)?));
    text.run(conn).await?.iter().flat_map(|reply| &reply.rows).map(message).collect()
}

/// The smallest id of a message that was enqueued at this time or later, and an id above all if there is none. Ids
/// follow the time of the enqueue but for a step of the database's clock. A few dozen reads of one row.
pub async fn first_since(conn: &mut MySqlConnection, since: i64) -> Result<u64, sqlx::Error> {
    let sql =
        "SELECT CAST(COALESCE(MIN(id), 0) AS UNSIGNED), CAST(COALESCE(MAX(id), 0) AS UNSIGNED) FROM outbox_messages";
    let (mut low, last): (u64, u64) = sqlx::query_as(sql).fetch_one(&mut *conn).await?;
    let mut high = last + 1;
    let sql = "SELECT id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at) FROM outbox_messages WHERE id >= ? \
               ORDER BY id LIMIT 1";
    while low < high {
        let middle = low + (high - low) / 2;
        match sqlx::query_as::<_, (u64, i64)>(sql).bind(middle).fetch_optional(&mut *conn).await? {
            Some((id, created_at)) if created_at < since => low = id + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// Of these messages, those that a claim lists, with the owner. Reads all claims.
async fn claimed(conn: &mut MySqlConnection, ids: &[u64]) -> Result<HashMap<u64, String>, sqlx::Error> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let text = sql!("SELECT id, owner FROM outbox_claimed_messages WHERE id IN ({ids})", ids = Ids(ids));
    let claim = |row: &MySqlRow| Ok((row.try_get(0)?, row.try_get(1)?));
    text.run(conn).await?.iter().flat_map(|reply| &reply.rows).map(claim).collect()
}

/// Reads the contents of a message and records that, in one transaction and round trip; `None`: it is not there. If it
/// fails, end the connection: its transaction is open.
pub async fn reveal(conn: &mut MySqlConnection, id: u64, actor: &Actor<'_>) -> Result<Option<Contents>, sqlx::Error> {
    let text = sql!(
        "BEGIN; {record};
        SELECT topic, message_key, event_type, content_type, headers, payload FROM outbox_messages
            WHERE id = {id}; COMMIT",
        record = record(actor, "reveal", &id.to_string(), &sql!("NULL"), None),
        id,
    );
    let replies = text.run(conn).await?;
    let row = replies.get(2).and_then(|reply| reply.rows.first());
    row.map(|row| contents::of(row, 0).map(|(contents, _)| contents)).transpose()
}
