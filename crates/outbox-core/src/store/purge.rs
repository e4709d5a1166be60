//! Deletes rows that are older than their retention, in chunks by primary key.

use std::{collections::HashSet, time::Duration};

use sqlx::{Connection as _, MySqlConnection, Row as _};

use super::{
    claim::ids_from_json,
    enqueue::micros,
    read::id_list,
    text::{Text, listed, sql},
};

/// Deletes the oldest receipts that are older than this, with their messages; returns the number of each. Deletes only
/// messages that a receipt names, except those that are to be sent again. A receipt with an unreadable list stays, with
/// its messages. Takes at most fifty receipts, and no further one once they name this number of `messages`. A receipt
/// names one message under slow traffic, and a thousand otherwise. Primary keys; one transaction.
pub async fn sent(conn: &mut MySqlConnection, age: Duration, messages: usize) -> Result<(u64, u64), sqlx::Error> {
    // Receipts are nearly in the order of their age: those behind fifty young ones can wait until one of the fifty is
    // old.
    let sql = "SELECT receipt_id, message_ids, lane FROM (SELECT receipt_id, message_ids, lane, sent_at FROM outbox_sent \
               WHERE IF(JSON_VALID(message_ids), JSON_TYPE(message_ids), '') = 'ARRAY' ORDER BY receipt_id LIMIT 50) AS oldest \
               WHERE sent_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND ORDER BY receipt_id";
    let rows = sqlx::query(sql).bind(micros(age)).fetch_all(&mut *conn).await?;
    let (mut receipts, mut ids) = (Vec::new(), Vec::new());
    for row in &rows {
        if ids.len() >= messages {
            break;
        }
        let Ok(named) = ids_from_json(row.try_get(1)?) else { continue };
        receipts.push(row.try_get::<u64, _>(0)?);
        let lane: u16 = row.try_get(2)?;
        ids.extend(named.into_iter().map(|id| (lane, id)));
    }
    if receipts.is_empty() {
        return Ok((0, 0));
    }
    ids.sort_unstable();
    let unsent = unsent(conn, &ids).await?;
    let mut ids: Vec<u64> = ids.into_iter().map(|(_, id)| id).filter(|id| !unsent.contains(id)).collect();
    ids.sort_unstable();
    let text = sql!(
        "BEGIN; DELETE FROM outbox_sent WHERE {receipts}; DELETE FROM outbox_messages WHERE {messages};
            DELETE FROM outbox_replays WHERE {messages}; DELETE FROM outbox_attempts WHERE {messages}; COMMIT",
        receipts = id_list("receipt_id", &receipts),
        messages = id_list("id", &ids),
    );
    let replies = text.run(conn).await?;
    let rows = |reply: usize| replies.get(reply).map_or(0, |reply| reply.done.rows_affected());
    Ok((rows(1), rows(2)))
}

/// Of these messages, sorted by lane and id, those that are to be sent again. Primary keys, no lock.
async fn unsent(conn: &mut MySqlConnection, messages: &[(u16, u64)]) -> Result<HashSet<u64>, sqlx::Error> {
    // 0 is no id: this selects no row, and gives the column the right type.
    let mut parts = vec![sql!("SELECT id FROM outbox_pending WHERE lane = 0 AND id = 0")];
    for chunk in messages.chunk_by(|a, b| a.0 == b.0) {
        let lane = chunk.first().map(|(lane, _)| *lane);
        let ids: Vec<u64> = chunk.iter().map(|(_, id)| *id).collect();
        parts.extend(["outbox_pending", "outbox_delayed", "outbox_dead"].map(|table| {
            sql!("SELECT id FROM {table} WHERE lane = {lane} AND {ids}", table, lane, ids = id_list("id", &ids))
        }));
    }
    let replies = Text::joined(parts, " UNION ALL ").run(conn).await?;
    replies.iter().flat_map(|reply| &reply.rows).map(|row| row.try_get(0)).collect()
}

/// Deletes dead messages that died longer ago than this; returns how many. At most `limit`, of one lane, locked first: one
/// that an operator is putting back at the moment is left out. Reads the dead messages; primary keys; one transaction.
pub async fn dead(conn: &mut MySqlConnection, age: Duration, limit: u32) -> Result<u64, sqlx::Error> {
    let sql = "SELECT lane, id FROM outbox_dead WHERE died_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND \
               ORDER BY lane, id LIMIT ? FOR UPDATE SKIP LOCKED";
    let mut tx = conn.begin().await?;
    let rows: Vec<(u16, u64)> = sqlx::query_as(sql).bind(micros(age)).bind(limit).fetch_all(&mut *tx).await?;
    let Some((lane, _)) = rows.first().copied() else { return tx.rollback().await.map(|()| 0) };
    let ids: Vec<u64> = rows.iter().take_while(|row| row.0 == lane).map(|row| row.1).collect();
    // One statement: a Galera node that rolls back in the middle of a text and goes on would delete the message of a row that an
    // operator puts back.
    let text = sql!(
        "DELETE d, m, r, a FROM {ids}
            STRAIGHT_JOIN outbox_dead d FORCE INDEX (PRIMARY) ON d.id = l.id AND d.lane = {lane}
            LEFT JOIN outbox_messages m FORCE INDEX (PRIMARY) ON m.id = d.id
            LEFT JOIN outbox_replays r FORCE INDEX (PRIMARY) ON r.id = d.id
            LEFT JOIN outbox_attempts a FORCE INDEX (PRIMARY) ON a.id = d.id",
        ids = listed(&ids),
        lane,
    );
    text.run(&mut tx).await?;
    tx.commit().await?;
    Ok(ids.len() as u64)
}

/// Deletes inbox rows older than this; returns how many. Index `inbox_processed_at`, at most `limit` rows.
pub async fn inbox(conn: &mut MySqlConnection, age: Duration, limit: u32) -> Result<u64, sqlx::Error> {
    let sql = "DELETE FROM inbox_processed WHERE processed_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND \
               ORDER BY processed_at LIMIT ?";
    Ok(sqlx::query(sql).bind(micros(age)).bind(limit).execute(conn).await?.rows_affected())
}
