//! The enqueued messages, for the assertions of tests.

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

/// The fields of a message that the service set.
#[derive(Debug)]
pub(crate) struct Enqueued {
    pub(crate) topic: String,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) event_type: Option<String>,
    pub(crate) content_type: Option<String>,
    /// A JSON object of strings.
    pub(crate) headers: Option<String>,
    /// `None` for a tombstone.
    pub(crate) payload: Option<Vec<u8>>,
}

/// All messages that the connection sees, in the order of ids. Primary key, no lock, every row of the table: for tests.
pub(crate) async fn all(conn: &mut MySqlConnection) -> Result<Vec<Enqueued>, sqlx::Error> {
    let sql = "SELECT topic, message_key, event_type, content_type, headers, payload FROM outbox_messages ORDER BY id";
    sqlx::query(sql).fetch_all(conn).await?.iter().map(enqueued).collect()
}

fn enqueued(row: &MySqlRow) -> Result<Enqueued, sqlx::Error> {
    Ok(Enqueued {
        topic: row.try_get(0)?,
        key: row.try_get(1)?,
        event_type: row.try_get(2)?,
        content_type: row.try_get(3)?,
        headers: row.try_get(4)?,
        payload: row.try_get(5)?,
    })
}
