//! The enqueued messages, for the assertions of tests.

use sqlx::MySqlConnection;

use crate::Contents;
use crate::store::contents;

/// All messages that the connection sees, in the order of ids. Primary key, no lock, every row of the table: for tests.
pub(crate) async fn all(conn: &mut MySqlConnection) -> Result<Vec<Contents>, sqlx::Error> {
    let sql = "SELECT topic, message_key, event_type, content_type, headers, payload FROM outbox_messages ORDER BY id";
    sqlx::query(sql).fetch_all(conn).await?.iter().map(|row| Ok(contents::of(row, 0)?.0)).collect()
}
