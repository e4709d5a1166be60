//! A sink, and how much it gets at a time.

use std::sync::Arc;

use super::{Sink, apart::Apart};

/// A sink, and the limits of what it gets at a time.
#[non_exhaustive]
pub struct Feed {
    /// Its name in the configuration.
    pub name: String,
    /// The sink.
    pub sink: Arc<dyn Sink>,
    /// Most batches in flight.
    pub batches: usize,
    /// Most messages of a batch.
    pub batch: usize,
}

impl Feed {
    /// Creates the feed of a sink, with at most this number of batches in flight, and of messages in a batch. The sink
    /// gets a thread of its own, so that it holds up no other if it blocks.
    #[must_use]
    pub fn new(name: impl Into<String>, sink: Arc<dyn Sink>, batches: usize, batch: usize) -> Self {
        let name = name.into();
        Self::direct(&name, Arc::new(Apart::new(&name, sink)), batches, batch)
    }

    /// The same for a sink that never blocks its thread.
    pub(crate) fn direct(name: &str, sink: Arc<dyn Sink>, batches: usize, batch: usize) -> Self {
        Self { name: name.to_owned(), sink, batches: batches.max(1), batch: batch.max(1) }
    }
}
