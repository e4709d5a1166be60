//! Messages that end their process, as with too large an allocation. Each process that follows would end as well.
//!
//! A message that may have ended a process is noted in `inbox_started` while another process works on it. Its row stays
//! where that process ends, too. A message with [`ALONE`] such starts is worked on with no other of its consumer beside
//! it, so that the guilty one is told from its neighbours. With [`MOST`] it is dead.

use std::{
    collections::HashMap,
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use outbox_core::{
    Claim, InboxError, Uuid,
    sqlx::{Error, MySqlConnection},
    store::{
        inbox::{forget_old_starts, note_start, set_starts, starts},
        refusal::{Refusal, refusal},
    },
};
use tokio::time::timeout;

use crate::{Delivery, Handler, delivery::Doubt, process::Processor};

/// From this number of starts without an end on, a message is worked on alone.
pub(crate) const ALONE: u32 = 2;
/// After this number of starts without an end a message is dead.
pub(crate) const MOST: u32 = 4;
/// The time limit to take back the notes of a process that stops.
const STOP: Duration = Duration::from_secs(5);

/// The notes of this process.
#[derive(Debug, Default)]
pub(crate) struct Starts {
    /// The messages at work that are noted, each with the starts of earlier processes.
    noted: Mutex<HashMap<Uuid, u32>>,
    /// The account may write no notes, or there is no table for them.
    refused: AtomicBool,
}

impl Starts {
    fn noted(&self) -> MutexGuard<'_, HashMap<Uuid, u32>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Handler> Processor<H> {
    /// How often processes may have ended while they worked on this message; `None` if that is not in doubt.
    pub(crate) async fn doubt(&self, delivery: &Delivery) -> Result<Option<u32>, InboxError> {
        let is_in_doubt = match &delivery.doubt {
            Doubt::None => false,
            Doubt::Redelivered => true,
            Doubt::First(left) => left.load(Ordering::Relaxed) > 0,
        };
        if !is_in_doubt || self.starts.refused.load(Ordering::Relaxed) || !self.is_new(delivery.id).await? {
            return Ok(None);
        }
        let consumer = self.consumer();
        let id = delivery.id;
        self.change(async |db| starts(db, consumer, id).await).await
    }

    async fn is_new(&self, id: Uuid) -> Result<bool, InboxError> {
        let Claim::First(tx) = self.in_time(self.inbox.admit(&self.pool, id)).await? else { return Ok(false) };
        self.undo(tx).await.ok();
        Ok(true)
    }

    /// Notes the start of the work. `earlier` is the number of starts of earlier processes.
    pub(crate) async fn note_start(&self, delivery: &mut Delivery, earlier: u32) -> Result<(), InboxError> {
        let consumer = self.consumer();
        let id = delivery.id;
        self.starts.noted().insert(id, earlier);
        self.change(async |db| note_start(db, consumer, id).await).await?;
        if let Doubt::First(left) = mem::replace(&mut delivery.doubt, Doubt::Redelivered) {
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).ok();
        }
        Ok(())
    }

    /// The process has survived the message: its own start is taken back, and with a decision those of others.
    pub(crate) async fn survived(&self, id: Uuid, is_decided: bool) {
        let earlier = self.starts.noted().remove(&id).filter(|_| !is_decided);
        let consumer = self.consumer();
        if let Err(error) = self.change(async |db| set_starts(db, consumer, id, earlier.unwrap_or(0)).await).await {
            tracing::debug!(message_id = %id, %error, "a start stays noted");
        }
    }

    /// Takes the notes back of messages whose work goes on while the process stops: it is not their fault.
    pub(crate) async fn forgive(&self) {
        let noted: Vec<Uuid> = self.starts.noted().keys().copied().collect();
        let all = async {
            for id in noted {
                self.survived(id, false).await;
            }
        };
        if timeout(STOP, all).await.is_err() {
            tracing::debug!("starts stay noted");
        }
    }

    pub(crate) async fn forget_old_starts(&self) {
        let consumer = self.consumer();
        if let Err(error) = self.change(async |db| forget_old_starts(db, consumer).await).await {
            tracing::debug!(%error, "old starts stay noted");
        }
    }

    /// Runs a call on the notes in a transaction of its own; `None` if the account may not, or there is no table.
    async fn change<T>(
        &self,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, Error>,
    ) -> Result<Option<T>, InboxError> {
        match self.in_transaction(work).await {
            Ok(done) => Ok(Some(done)),
            Err(InboxError::Database(error)) if refusal(&error) == Some(Refusal::Setup) => {
                if !self.starts.refused.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "messages that end this process are not found: migrate, grant what \
                                            deploy/grants has, and restart");
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
