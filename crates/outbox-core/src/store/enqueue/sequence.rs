//! Numbers of sequenced keys, on the service's connection and in its transaction.

use sqlx::MySqlConnection;

/// Takes `count` numbers of a key and returns the last of them. The first one ever is 1.
///
/// Locks the key's row until the transaction ends: a second transaction that takes a number of this key waits for that.
/// A rollback gives the numbers back. One round trip; the number comes with the reply.
pub async fn take(conn: &mut MySqlConnection, topic: &str, key: &[u8], count: u64) -> Result<u64, sqlx::Error> {
    let sql = "INSERT INTO outbox_key_sequence (topic, message_key, last_sequence) VALUES (?, ?, LAST_INSERT_ID(?)) \
               ON DUPLICATE KEY UPDATE last_sequence = LAST_INSERT_ID(last_sequence + ?)";
    let done = sqlx::query(sql).bind(topic).bind(key).bind(count).bind(count).execute(conn).await?;
    Ok(done.last_insert_id())
}
