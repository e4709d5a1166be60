//! A message in the publisher, and the claim that it belongs to.

use std::time::Instant;

use outbox_core::store::settle::Settlement;

use super::chains::Origin;
use crate::{
    pipeline::{claim::Claimed, retry::Policy},
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
}
