//! The consumer's memory of what it has processed.

use sqlx::MySqlConnection;
use uuid::Uuid;

use super::{DUPLICATE_ENTRY, NO_SUCH_SAVEPOINT, error_number};

/// Opens a transaction with the mark that [`release`] looks for, in one round trip.
pub const BEGIN: &str = "START TRANSACTION; SAVEPOINT outbox_inbox";

/// Whether the transaction that was opened with [`BEGIN`] is still the same: false: the server has ended it in between, after a
/// deadlock, a DDL statement, or a COMMIT of somebody else. Locks nothing.
pub async fn release(conn: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
    match sqlx::raw_sql("RELEASE SAVEPOINT outbox_inbox").execute(conn).await {
        Ok(_) => Ok(true),
        Err(error) if error_number(&error) == Some(NO_SUCH_SAVEPOINT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Notes that a consumer has processed a message; false: it had already. Primary key, one row. Waits while another
/// transaction holds the same pair, and is decided by how that one ends.
pub async fn insert(conn: &mut MySqlConnection, consumer: &str, message_id: Uuid) -> Result<bool, sqlx::Error> {
    let sql = "INSERT INTO inbox_processed (consumer, message_id, processed_at) VALUES (?, ?, UTC_TIMESTAMP(6))";
    match sqlx::query(sql).bind(consumer).bind(message_id.as_bytes().as_slice()).execute(conn).await {
        Ok(_) => Ok(true),
        Err(error) if error_number(&error) == Some(DUPLICATE_ENTRY) => Ok(false),
        Err(error) => Err(error),
    }
}
