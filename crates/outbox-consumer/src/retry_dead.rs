use std::time::Instant;

use outbox_core::{
    Uuid,
    sqlx::{Connection as _, MySqlPool},
    store::inbox::{Kept, delete_dead, lock_dead},
};

use crate::{Delivery, Failure, Handler};

/// What became of dead messages that were tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retried {
    /// Processed now, and no longer in the table.
    pub processed: u64,
    /// Still dead.
    pub failed: u64,
}

/// Gives the messages that this consumer keeps in `inbox_dead` to the handler once more, each in a transaction that also deletes its
/// row, in the order of their ids. For a command of the service, to be run by hand when what made them fail is repaired;
/// consumers may run meanwhile. Later messages of a key have long been processed.
pub async fn retry_dead(pool: &MySqlPool, consumer: &str, handler: &impl Handler) -> Result<Retried, Failure> {
    let (mut retried, mut after) = (Retried::default(), Uuid::nil());
    let mut connection = pool.acquire().await?;
    loop {
        let mut tx = connection.begin().await?;
        let Some(kept) = lock_dead(&mut tx, consumer, after).await? else { return Ok(retried) };
        let delivery = delivery(kept);
        after = delivery.id;
        match handler.handle(&mut tx, &delivery).await {
            Ok(()) => {
                delete_dead(&mut tx, consumer, after).await?;
                tx.commit().await?;
                retried.processed += 1;
            }
            Err(failure) => {
                tx.rollback().await?;
                retried.failed += 1;
                tracing::warn!(message_id = %after, consumer, error = %failure, "a message stays dead");
            }
        }
    }
}

fn delivery(kept: Kept) -> Delivery {
    let headers: serde_json::Map<String, serde_json::Value> =
        kept.headers.as_deref().and_then(|headers| serde_json::from_str(headers).ok()).unwrap_or_default();
    let headers = headers.into_iter().filter_map(|(name, value)| Some((name, value.as_str()?.to_owned())));
    Delivery {
        id: kept.message_id,
        topic: kept.topic,
        key: kept.key,
        event_type: kept.event_type,
        content_type: kept.content_type,
        headers: headers.collect(),
        payload: kept.payload,
        enqueued_at: None,
        attempt: kept.attempts + 1,
        received_at: Instant::now(),
        place: "inbox_dead".to_owned(),
        problem: None,
    }
}
