use outbox_core::{
    Inbox, InboxTransaction, Uuid,
    sqlx::{MySqlConnection, MySqlPool},
    store::inbox::{Kept, delete_dead, lock_dead, redate_mark},
};

use crate::{Delivery, Failure, Handler, sequence};

/// The outcome of a retry of dead messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Retried {
    /// Processed now, and no longer in the table.
    pub processed: u64,
    /// Still dead.
    pub failed: u64,
}

/// Retries the messages that this consumer keeps in `inbox_dead`, in the order of their ids, each in a transaction that
/// also deletes its row. For a command of the service, to be run by hand when the cause of the failures is repaired;
/// consumers may run meanwhile. Later messages of a key have long been processed, unless [`SequencePolicy::Refuse`]
/// made them wait here. The number of each processed message is noted, so the next one of its key is no longer refused.
/// A message that stays dead does not hold back those behind it. One that was processed after its death, because the
/// inbox had forgotten it when it came again, is only deleted. Messages whose payload was not kept (`too_large`) are
/// left out; where [`SequencePolicy::Refuse`] waits for the number of one, set the row of its key in `inbox_sequence`.
///
/// ```no_run
/// # use outbox_consumer::{Handler, retry_dead};
/// # use outbox_core::sqlx::MySqlPool;
/// # async fn command(pool: MySqlPool, handler: impl Handler) -> Result<(), Box<dyn std::error::Error>> {
/// let retried = retry_dead(&pool, "billing", &handler).await?;
/// println!("{} processed, {} still dead", retried.processed, retried.failed);
/// # Ok(()) }
/// ```
///
/// [`SequencePolicy::Refuse`]: crate::SequencePolicy::Refuse
pub async fn retry_dead(pool: &MySqlPool, consumer: &str, handler: &impl Handler) -> Result<Retried, Failure> {
    let mut retried = Retried::default();
    let mut after = Uuid::nil();
    let inbox = Inbox::new(consumer)?;
    loop {
        let mut tx = InboxTransaction::begin(pool).await?;
        let Some(kept) = lock_dead(&mut tx, consumer, after).await? else {
            tx.rollback().await?;
            return Ok(retried);
        };
        let delivery = delivery(kept);
        after = delivery.id;
        let outcome = match again(&mut tx, &inbox, handler, &delivery).await {
            Ok(is_new) => tx.commit().await.map(|()| is_new).map_err(Failure::from),
            Err(failure) => {
                tx.rollback().await?;
                Err(failure)
            }
        };
        match outcome {
            Ok(is_new) => retried.processed += u64::from(is_new),
            Err(failure) => {
                retried.failed += 1;
                tracing::warn!(message_id = %after, consumer, error = %failure, "a message stays dead");
            }
        }
    }
}

/// The work of one transaction. False: the message was processed after its death.
pub(crate) async fn again(
    tx: &mut MySqlConnection,
    inbox: &Inbox,
    handler: &impl Handler,
    delivery: &Delivery,
) -> Result<bool, Failure> {
    if !redate_mark(tx, inbox.consumer(), delivery.id).await? {
        delete_dead(tx, inbox.consumer(), delivery.id).await?;
        return Ok(false);
    }
    if let Some((number, key)) = sequence::number(delivery) {
        inbox.follow(tx, &delivery.contents.topic, key, number).await?;
    }
    handler.handle(tx, delivery).await?;
    delete_dead(tx, inbox.consumer(), delivery.id).await?;
    Ok(true)
}

pub(crate) fn delivery(kept: Kept) -> Delivery {
    Delivery {
        attempt: kept.attempts.saturating_add(1),
        place: "inbox_dead".to_owned(),
        ..Delivery::new(kept.message_id, kept.contents)
    }
}
