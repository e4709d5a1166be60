//! Spans of the relay: one trace for each claim that has a message whose own trace is sampled.

#[cfg(feature = "otlp")]
mod otlp;
#[cfg(not(feature = "otlp"))]
mod without;

use std::{collections::HashMap, sync::Arc, time::Instant};

#[cfg(feature = "otlp")]
pub(crate) use self::otlp::{Link, Traces};
#[cfg(not(feature = "otlp"))]
pub(crate) use self::without::{Link, Traces};
use crate::destination::Destination;

/// The names of sinks, and those of their brokers in the conventions.
pub(crate) type Systems = HashMap<String, &'static str>;

/// The times of a claim, and those of its messages whose trace is sampled.
#[derive(Debug)]
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "only spans have its fields"))]
pub(crate) struct ClaimTrace {
    /// The number of the claim.
    pub(crate) claim_id: u64,
    /// The lane.
    pub(crate) lane: u16,
    /// The number of its messages.
    pub(crate) messages: usize,
    /// When the look began that found them.
    pub(crate) started: Instant,
    /// When the claim was committed.
    pub(crate) claimed: Instant,
    /// When they were read and in the publisher.
    pub(crate) read: Instant,
    /// When all of them had an outcome.
    pub(crate) finished: Instant,
    /// Those to be published whose trace is sampled, by id.
    pub(crate) traced: Vec<Traced>,
}

/// A message whose trace is sampled.
#[derive(Debug)]
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "only spans have its fields"))]
pub(crate) struct Traced {
    /// Its number in the tables.
    pub(crate) id: u64,
    /// The span in which it was enqueued.
    pub(crate) link: Link,
    /// Where it goes.
    pub(crate) destination: Arc<Destination>,
    /// When its outcome was known; `None`: it was not published.
    pub(crate) done: Option<Instant>,
}

impl ClaimTrace {
    /// Notes that the outcome of a message is known now.
    pub(crate) fn done(&mut self, id: u64) {
        if let Ok(place) = self.traced.binary_search_by_key(&id, |message| message.id)
            && let Some(message) = self.traced.get_mut(place)
        {
            message.done = Some(Instant::now());
        }
    }
}
