//! Pauses of lanes, sinks and destinations, and what relays read of the orders of operators.

use std::time::Duration;

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::store::{
    enqueue::micros,
    operate::jobs::{Actor, record},
    text::{Utf8, sql},
};

/// A pause. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlRow {
    /// `lane`, `sink`, `destination` or `instance`.
    pub kind: String,
    /// The number of the lane, the name of the sink, or sink and destination with a slash between them.
    pub name: String,
    /// The start of the pause.
    pub paused_at: i64,
    /// The end of the pause; `None` if only an operator ends it.
    pub ends_at: Option<i64>,
    /// The name of the operator.
    pub actor: String,
    /// The reason.
    pub reason: String,
}

/// Writes a pause and its record in one transaction. It replaces an earlier pause of the same lane, sink or
/// destination. Without a time, only an operator ends it.
pub async fn pause(
    conn: &mut MySqlConnection,
    (kind, name): (&str, &str),
    time: Option<Duration>,
    actor: &Actor<'_>,
) -> Result<(), sqlx::Error> {
    let text = sql!(
        "BEGIN; REPLACE INTO outbox_controls (kind, name, paused_at, ends_at, actor, reason)
            VALUES ({kind}, {name}, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL {time} MICROSECOND, {actor},
                {reason});
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

/// Ends a pause and writes the record in one transaction. False: there is no pause.
pub async fn resume(
    conn: &mut MySqlConnection,
    (kind, name): (&str, &str),
    actor: &Actor<'_>,
) -> Result<bool, sqlx::Error> {
    let text = sql!(
        "DELETE FROM outbox_controls WHERE kind = {kind} AND name = {name} AND (ends_at IS NULL \
         OR ends_at > UTC_TIMESTAMP(6))",
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

/// The present pauses, and the number of the newest job, 0 without one. Reads the whole table of pauses, which also has
/// the rows of those whose time has passed; no lock.
pub async fn orders(conn: &mut MySqlConnection) -> Result<(Vec<ControlRow>, u64), sqlx::Error> {
    let sql = "SELECT CAST(COALESCE(j.newest, 0) AS UNSIGNED), c.kind, c.name, TIMESTAMPDIFF(MICROSECOND, \
               '1970-01-01', c.paused_at), \
               TIMESTAMPDIFF(MICROSECOND, '1970-01-01', c.ends_at), c.actor, c.reason \
               FROM (SELECT MAX(job_id) AS newest FROM outbox_jobs) j \
               LEFT JOIN outbox_controls c ON c.ends_at IS NULL OR c.ends_at > UTC_TIMESTAMP(6) \
               ORDER BY c.kind, c.name";
    let rows = sqlx::query(sql).fetch_all(conn).await?;
    let pause = |row: &MySqlRow| {
        let Some(kind) = row.try_get(1)? else { return Ok(None) };
        Ok(Some(ControlRow {
            kind,
            name: row.try_get(2)?,
            paused_at: row.try_get(3)?,
            ends_at: row.try_get(4)?,
            actor: row.try_get(5)?,
            reason: row.try_get(6)?,
        }))
    };
    let newest = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    let pauses = rows.iter().filter_map(|row| pause(row).transpose());
    Ok((pauses.collect::<Result<_, sqlx::Error>>()?, newest))
}

/// The present pauses, see [`orders`].
pub async fn paused(conn: &mut MySqlConnection) -> Result<Vec<ControlRow>, sqlx::Error> {
    orders(conn).await.map(|(pauses, _)| pauses)
}
