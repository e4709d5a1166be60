//! The lanes.

use std::ops::Range;

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::store::text::{Text, sql};

/// The lanes that have a head, and belong to this kind of processes or to none, in order. One row per lane, no lock.
pub async fn with_head(conn: &mut MySqlConnection, kind: &str) -> Result<Vec<u16>, sqlx::Error> {
    let sql = "SELECT lane FROM outbox_head WHERE kind IS NULL OR kind = ? ORDER BY lane";
    sqlx::query_scalar(sql).bind(kind).fetch_all(conn).await
}

/// The lanes that belong to this kind of processes, in order. One row per lane, no lock.
pub async fn of_kind(conn: &mut MySqlConnection, kind: &str) -> Result<Vec<u16>, sqlx::Error> {
    sqlx::query_scalar("SELECT lane FROM outbox_head WHERE kind = ? ORDER BY lane").bind(kind).fetch_all(conn).await
}

/// One past the last possible lane.
pub const END: u32 = 1 << 16;

/// The smallest of these lanes that has a pending row. One seek in the primary key, whatever the statistics are; it
/// goes past deleted rows that a snapshot keeps.
pub async fn next_pending(conn: &mut MySqlConnection, lanes: Range<u32>) -> Result<Option<u16>, sqlx::Error> {
    let sql = "SELECT MIN(lane) FROM outbox_pending WHERE lane BETWEEN ? AND ?";
    sqlx::query_scalar(sql).bind(lanes.start).bind(lanes.end.saturating_sub(1)).fetch_one(conn).await
}

/// The same for many ranges in one round trip: the smallest lane of each that has a pending row.
pub async fn pending(conn: &mut MySqlConnection, ranges: &[Range<u32>]) -> Result<Vec<u16>, sqlx::Error> {
    if ranges.is_empty() {
        return Ok(Vec::new());
    }
    let smallest = |range: &Range<u32>| {
        let first = range.start;
        let last = range.end.saturating_sub(1);
        sql!("SELECT MIN(lane) FROM outbox_pending WHERE lane BETWEEN {first} AND {last}", first, last)
    };
    let replies = Text::joined(ranges.iter().map(smallest), " UNION ALL ").run(conn).await?;
    let lane = |row: &MySqlRow| row.try_get::<Option<u16>, _>(0).transpose();
    replies.iter().flat_map(|reply| &reply.rows).filter_map(lane).collect()
}

/// Creates the head of a lane. Locks that row; harmless if it exists.
pub async fn create_head(conn: &mut MySqlConnection, lane: u16) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT IGNORE INTO outbox_head (lane) VALUES (?)").bind(lane).execute(conn).await.map(drop)
}

/// Returns the kind of processes that serve a lane, `relay` or `worker`: this one if there is none yet. Creates the
/// head if it is missing, and locks it.
pub async fn take_for(conn: &mut MySqlConnection, lane: u16, kind: &'static str) -> Result<String, sqlx::Error> {
    let text = sql!(
        "INSERT IGNORE INTO outbox_head (lane, kind) VALUES ({lane}, '{kind}');
        UPDATE outbox_head SET kind = '{kind}' WHERE lane = {lane} AND kind IS NULL;
        SELECT kind FROM outbox_head WHERE lane = {lane}",
        lane,
        kind,
    );
    let replies = text.run(conn).await?;
    let row = replies.get(2).and_then(|reply| reply.rows.first()).ok_or(sqlx::Error::RowNotFound)?;
    row.try_get(0)
}
