//! A consumer with an inbox: every arrival is processed, each message has one effect.

use anyhow::Result;
use outbox_core::{Claim, Inbox};
use sqlx::{Connection as _, MySqlConnection};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::{accounts::Account, consume::Arrival, database::Database};

/// The number of concurrent workers.
const WORKERS: usize = 3;

/// Processes all arrivals as this consumer, duplicates included. Neighbours go to different workers, so that duplicates
/// meet.
///
/// # Errors
/// When the database refuses.
pub async fn process(database: &Database, consumer: &str, arrivals: &[Arrival]) -> Result<()> {
    let mut tasks = JoinSet::new();
    let inbox = Inbox::new(consumer)?;
    for worker in 0..WORKERS {
        let own: Vec<Uuid> = arrivals.iter().skip(worker).step_by(WORKERS).map(|arrival| arrival.id).collect();
        let mut connection = database.connect_as(Account::Service).await?;
        let inbox = inbox.clone();
        tasks.spawn(async move {
            for id in own {
                process_one(&inbox, &mut connection, id).await?;
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
pub async fn process_one(inbox: &Inbox, connection: &mut MySqlConnection, id: Uuid) -> Result<bool> {
    let mut tx = connection.begin().await?;
    let first = inbox.claim(&mut tx, id).await? == Claim::First(());
    if first {
        let sql = "INSERT INTO test_effects (message_id) VALUES (?)";
        sqlx::query(sql).bind(id.as_bytes().as_slice()).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(first)
}
