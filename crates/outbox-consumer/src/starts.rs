//! Messages that end their process, as with too large an allocation. Each process that follows would end as well.
//!
//! A message that may have ended a process is noted in `inbox_started` while another process works on it. Its row stays
//! where that process ends, too. A message with [`ALONE`] such rows is worked on with no other beside it, so that the
//! guilty one is told from its neighbours. With [`MOST`] it is dead.

use std::{
    mem,
    sync::{Once, atomic::Ordering},
};

use futures_util::TryFutureExt as _;
use outbox_core::{
    Admission, InboxError, Uuid,
    sqlx::MySqlConnection,
    store::{
        inbox::{forget_old_starts, forget_starts, note_start, starts},
        refusal::{Refusal, refusal},
    },
};

use crate::{Delivery, Handler, delivery::Doubt, process::Processor};

/// From this number of starts without an end on, a message is worked on alone.
pub(crate) const ALONE: u32 = 2;
/// After this number of starts without an end a message is dead, for the reason [`CRASHES`].
pub(crate) const MOST: u32 = 4;
pub(crate) const CRASHES: &str = "crashes";

impl<H: Handler> Processor<H> {
    /// How often processes may have ended while they worked on this message; `None` if that is not in doubt.
    pub(crate) async fn doubt(&self, delivery: &Delivery) -> Result<Option<u32>, InboxError> {
        let is_in_doubt = match &delivery.doubt {
            Doubt::None => false,
            Doubt::Redelivered => true,
            Doubt::First(left) => left.load(Ordering::Relaxed) > 0,
        };
        if !is_in_doubt || !self.is_new(delivery.id).await? {
            return Ok(None);
        }
        let (consumer, id) = (self.consumer(), delivery.id);
        self.noted(async |db| starts(db, consumer, id).await).await
    }

    async fn is_new(&self, id: Uuid) -> Result<bool, InboxError> {
        let Admission::First(tx) = self.in_time(self.inbox.admit(&self.pool, id)).await? else { return Ok(false) };
        self.undo(tx).await;
        Ok(true)
    }

    /// Notes that the work begins. It is in doubt no more: this process will have survived it.
    pub(crate) async fn note_start(&self, delivery: &mut Delivery) -> Result<(), InboxError> {
        let (consumer, id) = (self.consumer(), delivery.id);
        self.noted(async |db| note_start(db, consumer, id).await).await?;
        if let Doubt::First(left) = mem::take(&mut delivery.doubt) {
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).ok();
        }
        Ok(())
    }

    /// The process has survived the message.
    pub(crate) async fn forget_starts(&self, id: Uuid) {
        let consumer = self.consumer();
        if let Err(error) = self.noted(async |db| forget_starts(db, consumer, id).await).await {
            tracing::debug!(message_id = %id, %error, "a start stays noted");
        }
    }

    pub(crate) async fn forget_old_starts(&self) {
        let consumer = self.consumer();
        if let Err(error) = self.noted(async |db| forget_old_starts(db, consumer).await).await {
            tracing::debug!(%error, "old starts stay noted");
        }
    }

    /// Runs a call on the notes in a transaction of its own; `None` if the account may not, or has no such table.
    async fn noted<T>(
        &self,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, outbox_core::sqlx::Error>,
    ) -> Result<Option<T>, InboxError> {
        static TOLD: Once = Once::new();
        let call = Box::pin(async {
            let mut tx = self.pool.begin().await?;
            let done = work(&mut tx).await?;
            tx.commit().await?;
            Ok(done)
        });
        match self.in_time(call.map_err(InboxError::Database)).await {
            Ok(done) => Ok(Some(done)),
            Err(InboxError::Database(error)) if refusal(&error) == Some(Refusal::Setup) => {
                TOLD.call_once(|| {
                    tracing::warn!(%error, "a message that ends its process is not found: migrate the tables, and grant what deploy/grants has");
                });
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
