//! The duties of every sink: one suite, run against the real broker.
//!
//! A new sink has a [`Harness`] in its tests and passes [`run`]. The suite never panics: it returns an error that names
//! the case and the fault.

mod cases;
mod messages;
mod tally;

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use async_trait::async_trait;
use outbox_core::BoxError;
use uuid::Uuid;

pub use self::messages::{Draft, publish, publish_until_sent};
use super::{Destination, Outgoing, Sink};

/// The time that one publish of the suite may take.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// A broken rule of a sink, or an error of its harness.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ConformanceError(BoxError);

impl ConformanceError {
    /// Makes it of any error, or of a text.
    pub fn new(error: impl Into<BoxError>) -> Self {
        Self(error.into())
    }
}

/// The test environment of a sink.
#[async_trait]
pub trait Harness: Send + Sync {
    /// The sink, connected to a broker that runs.
    fn sink(&self) -> &dyn Sink;

    /// Makes a new, empty destination.
    async fn destination(&self) -> Result<Arc<Destination>, ConformanceError>;

    /// Returns the messages at the destination, each key's in the order in which consumers see them. Waits until at
    /// least `least` messages are there, or none has come for some seconds; then reads to the end, because some may be
    /// there twice.
    async fn arrived(&self, destination: &Destination, least: usize) -> Result<Vec<Arrived>, ConformanceError>;

    /// Returns a destination that does not exist; `None` if every destination does.
    fn missing(&self) -> Option<Arc<Destination>>;

    /// Returns a message to this destination that the broker will never take; `None` if it takes everything.
    fn rejected(&self, destination: &Arc<Destination>) -> Option<Outgoing>;

    /// Returns a sink of the same kind whose broker does not run; `None` if it has no broker.
    fn unreachable(&self) -> Option<Box<dyn Sink>>;

    /// Does this to the broker; returns false if this harness cannot.
    async fn control(&self, control: Control) -> Result<bool, ConformanceError>;
}

/// The suite's faults of a broker, and their repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Control {
    /// Kill it: connections break, and its data stays.
    Kill,
    /// Start it again, with its data.
    Restart,
    /// Stop it from running: connections stay open, and nothing answers.
    Freeze,
    /// Let it run on.
    Thaw,
}

/// A message as a consumer gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// The id that consumers remember.
    pub message_id: Uuid,
    /// The message key; none is not the empty key.
    pub key: Option<Vec<u8>>,
    /// The kind of event.
    pub event_type: Option<String>,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// The message's own headers. Names may be in another order than given; the values of one name may not.
    pub headers: Vec<(String, String)>,
    /// The payload; none is a tombstone.
    pub payload: Option<Vec<u8>>,
}

/// Runs every case.
///
/// # Errors
///
/// The first case that fails, or an error of the harness.
pub async fn run(harness: &dyn Harness) -> Result<(), ConformanceError> {
    run_cases(harness).await.map_err(ConformanceError::new)
}

async fn run_cases(harness: &dyn Harness) -> anyhow::Result<()> {
    cases::every_message_arrives_byte_equal(harness).await.context("every message arrives byte-equal")?;
    cases::an_empty_batch_has_no_outcome(harness).await.context("an empty batch has no outcome")?;
    cases::a_large_batch_arrives(harness).await.context("a large batch arrives")?;
    cases::several_batches_are_in_flight(harness).await.context("several batches are in flight")?;
    cases::keys_keep_their_order(harness).await.context("keys keep their order")?;
    cases::a_refused_message_harms_no_neighbour(harness).await.context("a refused message harms no neighbour")?;
    cases::outcomes_stand_in_the_batchs_order(harness).await.context("outcomes stand in the batch's order")?;
    cases::a_deadline_is_kept(harness).await.context("a deadline is kept")?;
    cases::an_unreachable_broker_is_unavailable(harness).await.context("an unreachable broker is unavailable")?;
    cases::a_frozen_broker_confirms_nothing(harness).await.context("a frozen broker confirms nothing")?;
    cases::nothing_is_lost_when_the_broker_dies(harness).await.context("nothing is lost when the broker dies")
}
