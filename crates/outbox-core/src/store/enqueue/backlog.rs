//! The age of the oldest due message, for services.

use std::time::Duration;

use sqlx::MySqlConnection;

/// The age of the oldest due message, zero if none is due. One look-up per lane in the primary key of `outbox_pending`
/// and one row of `outbox_messages`, no lock: below a millisecond, however long the queue is.
pub async fn age(conn: &mut MySqlConnection) -> Result<Duration, sqlx::Error> {
    let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, m.created_at, UTC_TIMESTAMP(6)) FROM outbox_messages m \
               WHERE m.id = (SELECT MIN(p.id) FROM (SELECT MIN(id) AS id FROM outbox_pending GROUP BY lane) p)";
    let micros: Option<i64> = sqlx::query_scalar(sql).fetch_optional(conn).await?;
    Ok(Duration::from_micros(micros.and_then(|micros| u64::try_from(micros).ok()).unwrap_or(0)))
}
