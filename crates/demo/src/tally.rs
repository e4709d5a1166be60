//! What the programs of the demo have counted so far.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Broker;

/// What one consumer has seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Messages whose effect was applied.
    pub(crate) first: AtomicU64,
    /// Messages that the inbox knew already.
    pub(crate) duplicates: AtomicU64,
    /// Sum of the ages of messages at their arrival, in microseconds.
    pub(crate) age_micros: AtomicU64,
}

/// What all have counted.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) committed: AtomicU64,
    pub(crate) rolled_back: AtomicU64,
    pub(crate) kafka: Seen,
    pub(crate) rabbitmq: Seen,
}

impl Seen {
    /// Notes a message that has arrived.
    pub(crate) fn note(&self, first: bool, age_micros: u64) {
        let count = if first { &self.first } else { &self.duplicates };
        count.fetch_add(1, Relaxed);
        if first {
            self.age_micros.fetch_add(age_micros, Relaxed);
        }
    }
}

impl Tally {
    /// Whether every committed order has arrived everywhere.
    pub(crate) fn complete(&self, broker: Broker) -> bool {
        let committed = self.committed.load(Relaxed);
        let all = |seen: &Seen| seen.first.load(Relaxed) >= committed;
        (!broker.kafka() || all(&self.kafka)) && (!broker.rabbitmq() || all(&self.rabbitmq))
    }
}
