//! Putting delayed messages that are due back among the pending ones.

use sqlx::{MySqlConnection, Row as _};

use super::text::Text;

/// A delayed message that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The lane.
    pub lane: u16,
    /// The message.
    pub id: u64,
}

/// Delayed messages that are due, the longest first. Index `outbox_delayed_due`, at most `limit` rows, no lock.
pub async fn due(conn: &mut MySqlConnection, limit: u32) -> Result<Vec<Due>, sqlx::Error> {
    let sql = "SELECT lane, id FROM outbox_delayed WHERE due_at <= UTC_TIMESTAMP(6) ORDER BY due_at, id LIMIT ?";
    let rows = sqlx::query(sql).bind(limit).fetch_all(conn).await?;
    rows.iter().map(|row| Ok(Due { lane: row.try_get(0)?, id: row.try_get(1)? })).collect()
}

/// Moves delayed messages of one lane to pending; returns how many. Raises the lane's version, so that no claim is made on what was
/// seen before, and lowers `low`, so that the rows are looked for. One round trip; locks the head (so two relays do not promote
/// the same rows at once) and these rows.
pub async fn promote(conn: &mut MySqlConnection, lane: u16, ids: &[u64]) -> Result<u64, sqlx::Error> {
    let smallest = ids.iter().copied().min().unwrap_or(0);
    let rows = |text: Text| text.int(lane).sql(" AND id IN (").ints(ids.iter().copied()).sql(")");
    let text = Text::default()
        .sql("BEGIN; UPDATE outbox_head SET version = version + 1, claimer = 0, low = LEAST(low, ")
        .int(smallest)
        .sql(") WHERE lane = ")
        .int(lane)
        .sql("; INSERT INTO outbox_pending (lane, id, key_hash, bytes, attempts) ")
        .sql("SELECT lane, id, key_hash, bytes, attempts FROM outbox_delayed WHERE lane = ")
        .then(rows)
        .sql("; DELETE FROM outbox_delayed WHERE lane = ")
        .then(rows)
        .sql("; COMMIT");
    let replies = text.run(conn).await?;
    Ok(replies.get(2).map_or(0, |reply| reply.done.rows_affected()))
}
