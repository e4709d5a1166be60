//! Which lanes there are.

use sqlx::MySqlConnection;

/// The lanes that have a head, in order. One row per lane, no lock.
pub async fn with_head(conn: &mut MySqlConnection) -> Result<Vec<u16>, sqlx::Error> {
    sqlx::query_scalar("SELECT lane FROM outbox_head ORDER BY lane").fetch_all(conn).await
}

/// The smallest lane above `after` (-1: from the start) that has a pending row. One seek in the primary key.
pub async fn next_pending(conn: &mut MySqlConnection, after: i32) -> Result<Option<u16>, sqlx::Error> {
    let sql = "SELECT lane FROM outbox_pending WHERE lane > ? ORDER BY lane, id LIMIT 1";
    sqlx::query_scalar(sql).bind(after).fetch_optional(conn).await
}

/// Gives a lane its head. Locks that one row; harmless when it is there.
pub async fn create_head(conn: &mut MySqlConnection, lane: u16) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT IGNORE INTO outbox_head (lane) VALUES (?)").bind(lane).execute(conn).await.map(drop)
}
