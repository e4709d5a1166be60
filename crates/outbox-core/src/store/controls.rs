//! What operators have paused.

use std::time::Duration;

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use super::{
    enqueue::micros,
    jobs::{Actor, record},
    text::{Utf8, sql},
};

/// Something that is paused. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlRow {
    /// `lane`, `sink` or `destination`.
    pub kind: String,
    /// The number of the lane, the name of the sink, or sink and destination with a slash between them.
    pub name: String,
    /// When it was paused.
    pub paused_at: i64,
    /// When the pause ends by itself.
    pub ends_at: Option<i64>,
    /// Who paused it.
    pub actor: String,
    /// Why.
    pub reason: String,
}

/// Pauses something for a time, or until it is resumed, and records it in the same transaction. An earlier pause of it ends.
pub async fn pause(
    conn: &mut MySqlConnection,
    (kind, name): (&str, &str),
    time: Option<Duration>,
    actor: &Actor<'_>,
) -> Result<(), sqlx::Error> {
    let text = sql!(
        "BEGIN; REPLACE INTO outbox_controls (kind, name, paused_at, ends_at, actor, reason)
            VALUES ({kind}, {name}, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL {time} MICROSECOND, {actor}, {reason});
        {record}; COMMIT",
        kind = Utf8(kind),
        name = Utf8(name),
        time = time.map(micros),
        actor = Utf8(actor.name),
        reason = Utf8(actor.reason),
        record = record(actor, "pause", &format!("{kind} {name}"), &sql!("NULL"), None),
    );
    text.run(conn).await.map(drop)
}

/// Ends a pause, and records it in the same transaction. False: it is not paused.
pub async fn resume(
    conn: &mut MySqlConnection,
    (kind, name): (&str, &str),
    actor: &Actor<'_>,
) -> Result<bool, sqlx::Error> {
    let text = sql!(
        "DELETE FROM outbox_controls WHERE kind = {kind} AND name = {name} AND (ends_at IS NULL OR ends_at > UTC_TIMESTAMP(6))",
        kind = Utf8(kind),
        name = Utf8(name),
    );
    sql!("BEGIN").run(conn).await?;
    let is_resumed = text.run(conn).await?.first().is_some_and(|reply| reply.done.rows_affected() == 1);
    if is_resumed {
        record(actor, "resume", &format!("{kind} {name}"), &sql!("NULL"), None).run(conn).await?;
    }
    sql!("COMMIT").run(conn).await?;
    Ok(is_resumed)
}

/// What is paused now. Reads the table, which has a row for each thing that was ever paused and not resumed; no lock.
pub async fn paused(conn: &mut MySqlConnection) -> Result<Vec<ControlRow>, sqlx::Error> {
    let sql = "SELECT kind, name, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', paused_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', ends_at), \
               actor, reason FROM outbox_controls WHERE ends_at IS NULL OR ends_at > UTC_TIMESTAMP(6) ORDER BY kind, name";
    let rows = sqlx::query(sql).fetch_all(conn).await?;
    let row = |row: &MySqlRow| {
        Ok(ControlRow {
            kind: row.try_get(0)?,
            name: row.try_get(1)?,
            paused_at: row.try_get(2)?,
            ends_at: row.try_get(3)?,
            actor: row.try_get(4)?,
            reason: row.try_get(5)?,
        })
    };
    rows.iter().map(row).collect()
}
