//! Messages that went back to their broker before they were decided: a lost connection, a rebalance, or a time-out of
//! the broker does not begin their attempts and waits anew in this process.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use outbox_core::{Uuid, store::settle::losses::Streak};
use tokio::time::{Duration, Instant};

/// Most messages that are remembered: those of many windows.
const MOST: usize = 10_000;
/// The time after its wait when a message that did not come again counts as another process's.
const FORGET: Duration = Duration::from_secs(3600);

/// How far a message has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageProgress {
    /// The number of its next attempt.
    pub(crate) attempt: u32,
    /// Its failures, which decide the next wait.
    pub(crate) failures: u32,
    /// The end of its wait.
    pub(crate) until: Instant,
    /// The losses in a row of its connection or statement.
    pub(crate) streak: Streak,
}

impl MessageProgress {
    fn new() -> Self {
        Self { attempt: 1, failures: 0, until: Instant::now(), streak: Streak::default() }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Unfinished(Mutex<HashMap<Uuid, MessageProgress>>);

impl Unfinished {
    fn messages(&self) -> MutexGuard<'_, HashMap<Uuid, MessageProgress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out what is known of a message.
    pub(crate) fn take(&self, id: Uuid) -> MessageProgress {
        self.messages().remove(&id).unwrap_or_else(MessageProgress::new)
    }

    /// Remembers a message that goes back.
    pub(crate) fn keep(&self, id: Uuid, progress: MessageProgress) {
        let mut messages = self.messages();
        let now = Instant::now();
        if messages.len() >= MOST {
            messages.retain(|_, it| now.saturating_duration_since(it.until) < FORGET);
        }
        if messages.len() < MOST {
            messages.insert(id, progress);
        }
    }
}
