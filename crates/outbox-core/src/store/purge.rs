//! Deleting what is older than its retention, in chunks by primary key.

use std::time::Duration;

use sqlx::{MySqlConnection, Row as _};

use super::{claim::ids_from_json, enqueue::micros, read::id_list, text::Text};

/// Deletes the oldest receipts that are older than this, with their messages; returns how many messages. Only what a receipt names
/// is deleted, so an unsent message never is. At most `receipts` claims; primary keys; one transaction.
pub async fn sent(conn: &mut MySqlConnection, age: Duration, receipts: u32) -> Result<u64, sqlx::Error> {
    let sql = "SELECT claim_id, message_ids FROM outbox_sent WHERE claim_id <= (SELECT MIN(claim_id) + 10000 FROM outbox_sent) \
               AND sent_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND ORDER BY claim_id LIMIT ?";
    let rows = sqlx::query(sql).bind(micros(age)).bind(receipts).fetch_all(&mut *conn).await?;
    let (mut claims, mut ids) = (Vec::new(), Vec::new());
    for row in &rows {
        claims.push(row.try_get::<u64, _>(0)?);
        ids.extend(ids_from_json(row.try_get(1)?)?);
    }
    if claims.is_empty() {
        return Ok(0);
    }
    ids.sort_unstable();
    delete_with_messages(conn, "DELETE FROM outbox_sent WHERE ", "claim_id", &claims, &ids).await
}

/// Deletes dead messages that died longer ago than this; returns how many. At most `limit`; primary keys; one transaction.
pub async fn dead(conn: &mut MySqlConnection, age: Duration, limit: u32) -> Result<u64, sqlx::Error> {
    let sql =
        "SELECT id FROM outbox_dead WHERE died_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND ORDER BY id LIMIT ?";
    let ids: Vec<u64> = sqlx::query_scalar(sql).bind(micros(age)).bind(limit).fetch_all(&mut *conn).await?;
    if ids.is_empty() {
        return Ok(0);
    }
    delete_with_messages(conn, "DELETE FROM outbox_dead WHERE ", "id", &ids, &ids).await
}

async fn delete_with_messages(
    conn: &mut MySqlConnection,
    delete: &'static str,
    column: &'static str,
    rows: &[u64],
    messages: &[u64],
) -> Result<u64, sqlx::Error> {
    let text = Text::default()
        .sql("BEGIN; ")
        .sql(delete)
        .then(|text| id_list(text, column, rows))
        .sql("; DELETE FROM outbox_messages WHERE ")
        .then(|text| id_list(text, "id", messages))
        .sql("; COMMIT");
    let replies = text.run(conn).await?;
    Ok(replies.get(2).map_or(0, |reply| reply.done.rows_affected()))
}

/// Deletes inbox rows older than this; returns how many. Index `inbox_processed_at`, at most `limit` rows.
pub async fn inbox(conn: &mut MySqlConnection, age: Duration, limit: u32) -> Result<u64, sqlx::Error> {
    let sql = "DELETE FROM inbox_processed WHERE processed_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND \
               ORDER BY processed_at LIMIT ?";
    Ok(sqlx::query(sql).bind(micros(age)).bind(limit).execute(conn).await?.rows_affected())
}
