//! Which lanes there are.

use std::ops::Range;

use sqlx::MySqlConnection;

/// The lanes that have a head, in order. One row per lane, no lock.
pub async fn with_head(conn: &mut MySqlConnection) -> Result<Vec<u16>, sqlx::Error> {
    sqlx::query_scalar("SELECT lane FROM outbox_head ORDER BY lane").fetch_all(conn).await
}

/// Behind the last lane that there can be.
pub const END: u32 = 1 << 16;

/// The smallest of these lanes that has a pending row. One seek in the primary key, whatever the statistics are; it goes past
/// deleted rows that a snapshot keeps.
pub async fn next_pending(conn: &mut MySqlConnection, lanes: Range<u32>) -> Result<Option<u16>, sqlx::Error> {
    let sql = "SELECT MIN(lane) FROM outbox_pending WHERE lane BETWEEN ? AND ?";
    sqlx::query_scalar(sql).bind(lanes.start).bind(lanes.end.saturating_sub(1)).fetch_one(conn).await
}

/// Gives a lane its head. Locks that one row; harmless when it is there.
pub async fn create_head(conn: &mut MySqlConnection, lane: u16) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT IGNORE INTO outbox_head (lane) VALUES (?)").bind(lane).execute(conn).await.map(drop)
}
