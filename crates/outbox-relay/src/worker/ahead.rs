//! The places of a worker's claims: those at work, and those made ahead while the work is short. A claim costs a
//! commit, which several claims of one pass share.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    settings::RelayConfig,
    state::capacity::{Capacity, Pool},
};

/// Claims are made ahead for about this time: a pass takes about 5 ms, and another worker that is free misses little.
const TIME: Duration = Duration::from_millis(50);
/// Most claims that are made ahead for each transaction, and most in all. Each is a row that every look reads.
const MOST: usize = 32;
const MOST_IN_ALL: usize = 64;
/// Most messages of a pass, if a claim has fewer.
const OF_A_PASS: usize = 1000;
/// A claim that waits longer is released: the work is not short any more, and another worker may be free.
const PATIENCE: Duration = Duration::from_secs(1);
/// No claim is made ahead for this time after a release: otherwise many would be released where short and long work
/// alternate.
const CALM: Duration = Duration::from_secs(10);

pub(super) struct Ahead {
    at_work: Semaphore,
    concurrency: usize,
    batch: usize,
    capacity: Capacity,
    calm_until: Mutex<Option<Instant>>,
}

impl Ahead {
    /// Starts with no claim ahead.
    pub(super) fn new(concurrency: usize, relay: &RelayConfig) -> Self {
        let batch = relay.claim_messages.max(1);
        let messages = Pool::new(concurrency.saturating_mul(batch), batch.max(OF_A_PASS));
        let capacity = Capacity { messages, ..Capacity::new(relay) };
        let at_work = Semaphore::new(concurrency);
        let calm_until = Mutex::default();
        let ahead = Self { at_work, concurrency, batch, capacity, calm_until };
        ahead.resize(0);
        ahead
    }

    /// Returns the room for the claimers.
    pub(super) fn capacity(&self) -> Capacity {
        self.capacity.clone()
    }

    /// Waits for the turn of a claim, in the order of the calls. `None` after a second: the claim is to be released.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        let turn = tokio::time::timeout(PATIENCE, self.at_work.acquire()).await;
        if turn.is_err() {
            *self.calm_until.lock() = Some(Instant::now() + CALM);
            self.resize(0);
        }
        turn.ok()?.ok()
    }

    /// Notes how long a transaction took until its commit: the next ones may take as long.
    pub(super) fn took(&self, time: Duration) {
        if self.calm_until.lock().is_none_or(|until| until <= Instant::now()) {
            let fit = TIME.as_micros() / time.as_micros().max(1);
            self.resize(usize::try_from(fit).unwrap_or(MOST));
        }
    }

    fn resize(&self, each: usize) {
        let ahead = (each.min(MOST) * self.concurrency).min(MOST_IN_ALL);
        let fewest = (ahead / 2).max(1).saturating_mul(self.batch);
        self.capacity.messages.resize((self.concurrency + ahead).saturating_mul(self.batch), fewest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the places that a claimer gets now.
    async fn places(ahead: &Ahead) -> usize {
        ahead.capacity.messages.take(0).await.places()
    }

    #[tokio::test]
    async fn claims_are_made_ahead_while_the_work_is_short() {
        let relay = RelayConfig { claim_messages: 3, ..crate::settings::Config::default().relay };
        let ahead = Ahead::new(2, &relay);
        assert_eq!(places(&ahead).await, 6, "nothing is known of the work");
        let mut found = Vec::new();
        for micros in [0, 1000, 12_500, 40_000, 60_000] {
            ahead.took(Duration::from_micros(micros));
            found.push(places(&ahead).await / 3);
        }
        assert_eq!(found, [66, 66, 10, 4, 2]);
        ahead.took(Duration::ZERO);
        let long = Ahead::new(2, &RelayConfig { claim_messages: 300, ..relay });
        long.took(Duration::ZERO);
        assert_eq!(places(&long).await, 1000, "a pass has a limit");
        let working = [ahead.turn().await, ahead.turn().await];
        ahead.took(Duration::ZERO);
        assert!(working.iter().all(Option::is_some) && ahead.turn().await.is_none(), "a second has passed");
        assert_eq!(places(&ahead).await, 6);
        ahead.took(Duration::ZERO);
        assert_eq!(places(&ahead).await, 6, "no claim is made ahead for a while");
        drop(working);
        assert!(ahead.turn().await.is_some());
    }
}
