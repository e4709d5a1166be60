//! A consumer with an inbox: every arrival is processed, each message has one effect.

use anyhow::Result;
use outbox_core::{Claim, Inbox};
use sqlx::{Connection as _, MySqlConnection};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::{consume::Arrival, database::Database};

/// Processes all arrivals, duplicates included, with several workers at a time. Neighbours go to different workers, so that
/// duplicates meet.
///
/// # Errors
/// When the database refuses.
pub async fn process(database: &Database, arrivals: &[Arrival], workers: usize) -> Result<()> {
    let mut tasks = JoinSet::new();
    for worker in 0..workers {
        let own: Vec<Uuid> = arrivals.iter().skip(worker).step_by(workers).map(|arrival| arrival.id).collect();
        let mut connection = database.connect().await?;
        tasks.spawn(async move {
            for id in own {
                process_one(&mut connection, id).await?;
            }
            anyhow::Ok(connection.close().await?)
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// Processes one delivery; returns whether it was the first of its message.
///
/// # Errors
/// When the database refuses.
pub async fn process_one(connection: &mut MySqlConnection, id: Uuid) -> Result<bool> {
    let mut tx = connection.begin().await?;
    let first = apply(&mut tx, id).await?;
    tx.commit().await?;
    Ok(first)
}

/// Claims a message in an open transaction, and has its effect there; returns whether it was the first of its message.
///
/// # Errors
/// When the database refuses.
pub async fn apply(tx: &mut MySqlConnection, id: Uuid) -> Result<bool> {
    let first = Inbox::new("test")?.claim(&mut *tx, id).await? == Claim::First;
    if first {
        let sql = "INSERT INTO test_effects (message_id) VALUES (?)";
        sqlx::query(sql).bind(id.as_bytes().as_slice()).execute(tx).await?;
    }
    Ok(first)
}
