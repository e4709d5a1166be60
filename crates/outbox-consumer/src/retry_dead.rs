use std::time::Instant;

use outbox_core::{
    Inbox, InboxError, Uuid,
    sqlx::{Connection as _, MySqlConnection, MySqlPool},
    store::inbox::{BEGIN, Kept, delete_dead, lock_dead, release},
};

use crate::{Delivery, Failure, Handler, sequence};

/// The outcome of a retry of dead messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
/// A message that stays dead does not hold back those behind it.
///
/// [`SequencePolicy::Refuse`]: crate::SequencePolicy::Refuse
pub async fn retry_dead(pool: &MySqlPool, consumer: &str, handler: &impl Handler) -> Result<Retried, Failure> {
    let (mut retried, mut after, inbox) = (Retried::default(), Uuid::nil(), Inbox::new(consumer)?);
    let mut connection = pool.acquire().await?;
    loop {
        let mut tx = connection.begin_with(BEGIN).await?;
        let Some(kept) = lock_dead(&mut tx, consumer, after).await? else { return Ok(retried) };
        let delivery = delivery(kept);
        after = delivery.id;
        match again(&mut tx, &inbox, handler, &delivery).await {
            Ok(()) => {
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

/// The work of one transaction.
async fn again(
    tx: &mut MySqlConnection,
    inbox: &Inbox,
    handler: &impl Handler,
    delivery: &Delivery,
) -> Result<(), Failure> {
    if let Some((number, key)) = sequence::number(delivery) {
        inbox.follow(tx, &delivery.topic, key, number).await?;
    }
    handler.handle(tx, delivery).await?;
    if !release(tx).await? {
        return Err(InboxError::TransactionEnded.into());
    }
    Ok(delete_dead(tx, inbox.consumer(), delivery.id).await?)
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
        attempt: kept.attempts.saturating_add(1),
        received_at: Instant::now(),
        place: "inbox_dead".to_owned(),
        problem: None,
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;
    use testkit::strategies::text;

    use super::*;
    use crate::properties::{bytes, look_at};

    /// A row with these headers.
    fn kept(headers: Option<String>, attempts: u32) -> Kept {
        Kept {
            message_id: Uuid::nil(),
            topic: "orders".to_owned(),
            key: None,
            event_type: None,
            content_type: None,
            headers,
            payload: None,
            attempts,
        }
    }

    proptest! {
        /// A row may have been edited by hand: headers that cannot be read count as none.
        #[test]
        fn every_row_is_a_delivery(
            headers in prop::option::of(prop_oneof!["[\\[\\]{}\":,a-c0-9 ]{0,30}", any::<String>()]),
            attempts in prop_oneof![any::<u32>(), Just(u32::MAX)],
        ) {
            let read = delivery(kept(headers, attempts));
            prop_assert!(read.attempt >= attempts.max(1));
            look_at(&read)?;
        }

        #[test]
        fn a_message_that_died_comes_back_as_it_was(
            headers in prop::collection::btree_map(text(), text(), 0..6), (key, payload) in (bytes(), bytes()),
            (event_type, content_type) in (prop::option::of(text()), prop::option::of(text())),
        ) {
            let mut died = Delivery::new(Uuid::nil(), "orders", payload);
            died.headers = headers.into_iter().collect();
            (died.key, died.event_type, died.content_type) = (key, event_type, content_type);
            let row = Kept {
                key: died.key.clone(),
                event_type: died.event_type.clone(),
                content_type: died.content_type.clone(),
                payload: died.payload.clone(),
                ..kept(died.headers_json(), 3)
            };
            let back = delivery(row);
            prop_assert_eq!((back.id, &back.topic, back.attempt), (died.id, &died.topic, 4));
            prop_assert_eq!((&back.key, &back.payload, &back.headers), (&died.key, &died.payload, &died.headers));
            prop_assert_eq!((&back.event_type, &back.content_type), (&died.event_type, &died.content_type));
        }
    }
}
