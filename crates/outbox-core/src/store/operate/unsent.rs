//! Lists unsent messages, for operators.

use sqlx::{AssertSqlSafe, MySqlConnection, Row as _, mysql::MySqlRow};
use uuid::Uuid;

use crate::store::{
    contents::uuid,
    operate::find::{StateRow, StateTable},
    text::{listed, sql},
};

/// An unsent message, without key, headers and payload. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsentRow {
    /// Its number in the tables.
    pub id: u64,
    /// Its state.
    pub state: StateRow,
    /// The id that consumers see; `None` if its row in `outbox_messages` was deleted.
    pub message_id: Option<Uuid>,
    /// The topic; empty if its row was deleted.
    pub topic: String,
    /// The time of the enqueue; `None` if its row was deleted.
    pub created_at: Option<i64>,
    /// Whether a replay has put it there: it was sent before.
    pub is_replayed: bool,
}

/// The rows of a table above this lane and id, at most `limit`, in this order. Primary keys, no lock.
pub async fn above(
    conn: &mut MySqlConnection,
    table: StateTable,
    (lane, id): (u16, u64),
    limit: u32,
) -> Result<Vec<UnsentRow>, sqlx::Error> {
    let sql = select(table, "PRIMARY", "WHERE t.lane > ? OR t.lane = ? AND t.id > ? ORDER BY t.lane, t.id LIMIT ?");
    let rows = sqlx::query(AssertSqlSafe(sql)).bind(lane).bind(lane).bind(id).bind(limit).fetch_all(conn).await?;
    rows.iter().map(|row| unsent(table, row)).collect()
}

/// A statement that reads [`UnsentRow`]s of a table `t` by an index.
fn select(table: StateTable, index: &str, rest: &str) -> String {
    format!(
        "SELECT {columns}, t.id, m.message_id, COALESCE(m.topic, ''), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', \
         m.created_at), \
         EXISTS (SELECT 1 FROM outbox_replays r WHERE r.id = t.id) = 1 \
         FROM {name} t FORCE INDEX ({index}) LEFT JOIN outbox_messages m ON m.id = t.id {rest}",
        columns = table.columns(),
        name = table.name(),
    )
}

fn unsent(table: StateTable, row: &MySqlRow) -> Result<UnsentRow, sqlx::Error> {
    Ok(UnsentRow {
        state: StateRow::of(table, row)?,
        id: row.try_get(7)?,
        message_id: row.try_get::<Option<_>, _>(8)?.map(uuid).transpose()?,
        topic: row.try_get(9)?,
        created_at: row.try_get(10)?,
        is_replayed: row.try_get(11)?,
    })
}

/// The lanes that have unsent messages. A seek per lane and table.
pub async fn lanes(conn: &mut MySqlConnection) -> Result<Vec<u16>, sqlx::Error> {
    let sql = "SELECT lane FROM outbox_pending GROUP BY lane UNION SELECT lane FROM outbox_delayed GROUP BY lane \
               UNION SELECT lane FROM outbox_dead GROUP BY lane";
    sqlx::query_scalar(sql).fetch_all(conn).await
}

/// The first delayed or dead messages of a key in a lane, at most `limit`: those that hold the key, or the others. A
/// range of `outbox_delayed_key` or `outbox_dead_key`, no lock. [`StateTable::Pending`] has no index of keys, and gives
/// none.
pub async fn of_key(
    conn: &mut MySqlConnection,
    table: StateTable,
    (lane, key_hash): (u16, u64),
    holds_key: bool,
    limit: u32,
) -> Result<Vec<UnsentRow>, sqlx::Error> {
    let index = match table {
        StateTable::Pending => return Ok(Vec::new()),
        StateTable::Delayed => "outbox_delayed_key",
        StateTable::Dead => "outbox_dead_key",
    };
    // With `key_hash` in the order MySQL reads no more than the limit: see `held::among`.
    let rest = "WHERE t.lane = ? AND t.holds_key = ? AND t.key_hash = ? ORDER BY t.key_hash, t.id LIMIT ?";
    let sql = select(table, index, rest);
    let rows = sqlx::query(AssertSqlSafe(sql)).bind(lane).bind(holds_key).bind(key_hash).bind(limit);
    rows.fetch_all(conn).await?.iter().map(|row| unsent(table, row)).collect()
}

/// The lane of a message in a table; `None` if it is not there. A seek for each lane of the table.
pub async fn lane(conn: &mut MySqlConnection, table: StateTable, id: u64) -> Result<Option<u16>, sqlx::Error> {
    let sql = format!(
        "SELECT t.lane FROM (SELECT lane FROM {name} GROUP BY lane) l \
         STRAIGHT_JOIN {name} t FORCE INDEX (PRIMARY) ON t.lane = l.lane AND t.id = ?",
        name = table.name(),
    );
    sqlx::query_scalar(AssertSqlSafe(sql)).bind(id).fetch_optional(conn).await
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

/// A key whose messages wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingKey {
    /// The first of its messages that is delayed or dead.
    pub head: UnsentRow,
    /// The number of its messages that are delayed, and of dead ones that hold it.
    pub messages: u64,
}

/// The keys with the most waiting messages, at most `limit`. Reads the index entries of all messages that hold a key;
/// no lock.
pub async fn waiting_keys(conn: &mut MySqlConnection, limit: u32) -> Result<Vec<WaitingKey>, sqlx::Error> {
    let sql = "SELECT lane, MIN(id), CAST(COUNT(*) AS UNSIGNED) AS messages FROM \
               (SELECT lane, key_hash, id FROM outbox_delayed WHERE holds_key = 1 \
               UNION ALL SELECT lane, key_hash, id FROM outbox_dead WHERE holds_key = 1) u \
               GROUP BY lane, key_hash ORDER BY messages DESC, lane, MIN(id) LIMIT ?";
    let keys: Vec<(u16, u64, u64)> = sqlx::query_as(sql).bind(limit).fetch_all(&mut *conn).await?;
    let mut waiting = Vec::new();
    for (lane, id, messages) in keys {
        for table in [StateTable::Dead, StateTable::Delayed] {
            let head = above(conn, table, (lane, id.saturating_sub(1)), 1).await?.pop();
            if let Some(head) = head.filter(|head| (head.state.lane, head.id) == (lane, id)) {
                waiting.push(WaitingKey { head, messages });
                break;
            }
        }
    }
    Ok(waiting)
}
