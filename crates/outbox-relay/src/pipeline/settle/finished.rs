//! A claim that is to be settled.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Instant,
};

use outbox_core::store::{claim::lease::ClaimLease, settle::Settlement};

use crate::{
    observe::traces::ClaimTrace,
    pipeline::claim::Claimed,
    state::{capacity::Share, leases::Tenure},
};

/// A claim whose messages all have an outcome.
pub struct Finished {
    pub(super) tenure: Arc<Tenure>,
    pub(super) settlement: Settlement,
    pub(super) last_pass: Arc<AtomicU64>,
    /// Keys whose queue must be read on afterwards.
    pub(super) queued: Vec<u64>,
    pub(super) trace: Option<Box<ClaimTrace>>,
    _room: Share,
}

impl Finished {
    /// Wraps a claim whose messages all have an outcome. `queued` are the keys whose queue must be read on after its
    /// settlement.
    #[must_use]
    pub(crate) fn new(
        claimed: Claimed,
        settlement: Settlement,
        queued: Vec<u64>,
        mut trace: Option<Box<ClaimTrace>>,
    ) -> Self {
        if let Some(trace) = &mut trace {
            trace.finished = Instant::now();
        }
        // Nothing is written for a lost claim. Then its failed messages are pending again, too.
        claimed.tenure.settle(settlement.sent.len() < claimed.tenure.ids.len());
        Self {
            tenure: claimed.tenure,
            settlement,
            last_pass: claimed.last_pass,
            queued,
            trace,
            _room: claimed.room.messages,
        }
    }

    pub(crate) fn lease(&self) -> ClaimLease {
        self.tenure.lease
    }

    pub(crate) fn settlement(&self) -> &Settlement {
        &self.settlement
    }

    /// Whether an earlier part of the tail among these has one of its keys.
    pub(super) fn is_behind<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> bool {
        let shares = |other: &Self| self.tenure.keys.iter().any(|key| other.tenure.keys.binary_search(key).is_ok());
        self.tenure.is_part && others.into_iter().any(|other| other.lease() < self.lease() && shares(other))
    }

    /// Whether some of its messages have no outcome to write, and are pending as before.
    pub(crate) fn releases(&self) -> bool {
        let Settlement { sent, delayed, dead } = &self.settlement;
        sent.len() + delayed.len() + dead.len() < self.tenure.ids.len()
    }

    /// Whether no message has an outcome to write: then the claim only needs to be released.
    pub(super) fn is_empty(&self) -> bool {
        let Settlement { sent, delayed, dead } = &self.settlement;
        sent.is_empty() && delayed.is_empty() && dead.is_empty()
    }
}
