//! Backpressure: a service notices that no relay sends its messages.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use sqlx::MySqlConnection;

use crate::{EnqueueError, Outbox, store};

/// How long a reading is used.
const FRESH: Duration = Duration::from_secs(5);

/// The reaction of `enqueue` to an oldest due message that has waited for longer than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnBacklog {
    /// Writes a warning to the log (`tracing`), once per reading, and enqueues.
    Warn,
    /// Returns [`EnqueueError::Backlog`].
    Refuse,
}

/// The limit of an outbox and its last reading, which its clones share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watch {
    limit: Option<(Duration, OnBacklog)>,
    last: Arc<Mutex<Option<Reading>>>,
}

#[derive(Debug)]
struct Reading {
    at: Instant,
    age: Duration,
    warned: bool,
}

impl Watch {
    fn last(&self) -> MutexGuard<'_, Option<Reading>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last reading if it is fresh, or else a new one.
    async fn age(&self, conn: &mut MySqlConnection) -> Result<Duration, sqlx::Error> {
        let fresh = self.last().as_ref().filter(|last| last.at.elapsed() < FRESH).map(|last| last.age);
        if let Some(age) = fresh {
            return Ok(age);
        }
        let at = Instant::now();
        let age = store::enqueue::backlog::age(conn).await?;
        *self.last() = Some(Reading { at, age, warned: false });
        Ok(age)
    }

    /// True once for each reading: the first call marks it as warned of.
    fn warns(&self) -> bool {
        self.last().as_mut().is_some_and(|last| !std::mem::replace(&mut last.warned, true))
    }

    pub(crate) async fn check(&self, conn: &mut MySqlConnection) -> Result<(), EnqueueError> {
        let Some((limit, what)) = self.limit else { return Ok(()) };
        let age = self.age(conn).await?;
        match what {
            _ if age <= limit => Ok(()),
            OnBacklog::Refuse => Err(EnqueueError::Backlog { age, limit }),
            OnBacklog::Warn => {
                if self.warns() {
                    tracing::warn!(?age, ?limit, "messages wait in the outbox: is a relay running?");
                }
                Ok(())
            }
        }
    }
}

impl Outbox {
    /// How long the oldest due message has been waiting, counted from its enqueue; zero if none is due. For health
    /// checks, and to slow down before the limit [`Outbox::max_backlog_age`] is reached.
    ///
    /// A reading is kept for five seconds and shared by the clones of this outbox: keep one outbox, and ask as often as
    /// you like. The account needs to read `outbox_pending (lane, id)` and `outbox_messages (id, created_at)`. An error
    /// is the database's own and is not kept: the next call asks again.
    pub async fn backlog(&self, conn: &mut MySqlConnection) -> Result<Duration, sqlx::Error> {
        self.watch.age(conn).await
    }

    /// A limit on [`Outbox::backlog`]: beyond it enqueueing warns or refuses. No limit by default.
    ///
    /// Every five seconds one enqueue reads the age first, in its own transaction. A scheduled message counts from its
    /// enqueue as soon as it is due: if messages are scheduled far ahead, only warn. The messages of one batch are
    /// checked once. A REPEATABLE READ transaction sees the queue as of its first read. If transactions last longer
    /// than the limit, call [`Outbox::backlog`] on its own connection every few seconds; then enqueueing need not read.
    #[must_use]
    pub fn max_backlog_age(mut self, limit: Duration, what: OnBacklog) -> Self {
        self.watch.limit = Some((limit, what));
        self
    }
}
