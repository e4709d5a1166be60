//! A message in the publisher, and the claim that it belongs to.

use std::{sync::Arc, time::Instant};

use outbox_core::store::{claim::Pending, settle::Settlement};

use super::chains::Origin;
use crate::{
    observe::traces::{ClaimTrace, Traced},
    pipeline::{claim::Claimed, read::Step, retry::Policy},
    sink::Outgoing,
};

/// A message in the publisher.
#[derive(Debug)]
pub struct Item {
    /// The message as the sink gets it.
    pub outgoing: Outgoing,
    /// The publisher's notes on it.
    pub tag: Tag,
}

/// The publisher's notes on a message.
#[derive(Debug, Clone, Copy)]
pub struct Tag {
    /// Its key, claim and id.
    pub origin: Origin,
    /// Attempts that were spent before.
    pub attempts: u16,
    /// Its route's policy for failures.
    pub policy: Policy,
    /// Whether its route lets messages of a key overtake each other.
    pub pipelined: bool,
    /// Whether no other message of its key is in flight with it.
    pub alone: bool,
    /// The time at which it was due.
    pub due_at: Instant,
    /// The outlet that it goes to.
    pub outlet: usize,
}

/// A claim that is being published.
pub(super) struct InFlight {
    pub(super) claimed: Claimed,
    pub(super) settlement: Settlement,
    /// Messages without an outcome.
    pub(super) open: usize,
    /// Keys whose queue must be read on.
    pub(super) queued: Vec<u64>,
    /// For its spans, if it has any.
    pub(super) trace: Option<Box<ClaimTrace>>,
}

impl InFlight {
    /// Wraps a claim whose messages have no outcome yet.
    pub(super) fn new(claimed: Claimed, messages: &mut [(Pending, Step)]) -> Self {
        let settlement = Settlement { sent: Vec::with_capacity(messages.len()), ..Settlement::default() };
        let trace = trace(&claimed, messages).map(Box::new);
        let open = messages.len();
        let queued = claimed.tenure.queued.clone();
        Self { claimed, settlement, open, queued, trace }
    }
}

/// The times of a claim, if it has a message whose trace is sampled.
fn trace(claimed: &Claimed, messages: &mut [(Pending, Step)]) -> Option<ClaimTrace> {
    let traced = messages.iter_mut().filter_map(|(row, step)| match step {
        Step::Publish(ready) => {
            let link = ready.link.take()?;
            let destination = Arc::clone(&ready.outgoing.destination);
            Some(Traced { id: row.id, link, destination, done: None })
        }
        Step::Decided(..) => None,
    });
    let traced: Vec<_> = traced.collect();
    let ((started, at), tenure) = (claimed.times, &claimed.tenure);
    (!traced.is_empty()).then(|| ClaimTrace {
        claim_id: tenure.claim_id,
        lane: tenure.lane,
        messages: tenure.ids.len(),
        started,
        claimed: at,
        read: Instant::now(),
        finished: Instant::now(),
        traced,
    })
}
