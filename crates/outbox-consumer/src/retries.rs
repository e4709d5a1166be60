//! Orders of operators to retry messages that are dead at this consumer (`relay inbox retry`).

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt as _;
use outbox_core::{
    InboxError, InboxTransaction, Uuid,
    store::{
        inbox::{
            is_dead, lock_dead,
            retries::{OpenRetry, before, end, next, note, open, take},
        },
        refusal::{Refusal, refusal},
    },
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    Failure, Handler, lines,
    process::Processor,
    retry_dead::{again, delivery},
};

/// Pause between two looks for orders.
const EVERY: Duration = Duration::from_secs(5);
/// A commit may take this much longer than the handler before another process begins with the next message.
const COMMIT: Duration = Duration::from_secs(10);

impl<H: Handler> Processor<H> {
    /// Carries out orders until `stop` is cancelled: of all processes of the consumer one at a time, so that messages
    /// of a key keep their order.
    pub(crate) async fn carry_out_retries(&self, stop: &CancellationToken) {
        const TEXT: &str =
            "orders of `relay inbox retry` are not carried out: migrate, and grant what deploy/grants has";
        loop {
            match self.carry_out(stop).await {
                Ok(()) => {}
                Err(InboxError::Database(error)) if refusal(&error) == Some(Refusal::Setup) => {
                    if lines::shown(self.consumer(), TEXT) {
                        tracing::warn!(%error, consumer = self.consumer(), "{TEXT}");
                    }
                }
                Err(error) => tracing::debug!(%error, "orders of operators cannot be read"),
            }
            if stop.run_until_cancelled(sleep(EVERY)).await.is_none() {
                return;
            }
        }
    }

    /// Carries out the open orders.
    async fn carry_out(&self, stop: &CancellationToken) -> Result<(), InboxError> {
        let consumer = self.consumer();
        let longest = self.options.deadline + COMMIT;
        while !stop.is_cancelled() {
            let Some(retry) = self.in_transaction(async |db| open(db, consumer).await).await? else { break };
            let Some(id) = self.in_transaction(async |db| next(db, consumer, &retry).await).await? else {
                self.in_transaction(async |db| end(db, &retry).await).await?;
                tracing::info!(consumer, retry = retry.retry_id, "an operator's retry of dead messages is done");
                continue;
            };
            let Some(Ok(_permit)) = stop.run_until_cancelled(self.at_work.acquire()).await else { break };
            if !self.in_transaction(async |db| take(db, &retry, id, longest).await).await? {
                break;
            }
            if let Err(error) = self.retry_one(&retry, id).await {
                tracing::warn!(message_id = %id, consumer, %error, "a message stays dead");
                self.in_transaction(async |db| note(db, retry.retry_id, false).await).await?;
            }
        }
        Ok(())
    }

    /// Gives a dead message to the handler, in one transaction with the note in the order.
    async fn retry_one(&self, retry: &OpenRetry, id: Uuid) -> Result<(), Failure> {
        let work = async {
            let mut tx = InboxTransaction::begin(&self.pool).await?;
            let kept = lock_dead(&mut tx, self.consumer(), before(id)).await?.filter(|kept| kept.message_id == id);
            match kept {
                Some(kept) => drop(again(&mut tx, &self.inbox, &self.handler, &delivery(kept)).await?),
                None if is_dead(&mut tx, self.consumer(), id).await? => {
                    return Err("another transaction works on it".into());
                }
                // Another retry was faster.
                None => {}
            }
            note(&mut tx, retry.retry_id, true).await?;
            Ok::<(), Failure>(tx.commit().await?)
        };
        match timeout(self.options.deadline, AssertUnwindSafe(work).catch_unwind()).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_panic)) => Err("the handler panicked".into()),
            Err(elapsed) => Err(elapsed.into()),
        }
    }
}
