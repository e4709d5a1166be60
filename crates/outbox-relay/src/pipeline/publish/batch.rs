//! Messages that go to a sink together, and their outcomes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    pipeline::publish::{
        item::{Item, Tag},
        room,
    },
    sink::{Destination, GRACE, Outcome, Outgoing, PublishError, Sink, progress::Progress},
};

/// Messages that go to a sink together.
pub struct Batch {
    /// The outlet that it goes to.
    pub outlet: usize,
    /// Its messages, in order.
    pub items: Vec<Item>,
    /// Whether these are tries of a destination that takes nothing. They may take the whole deadline, and must not take
    /// the room of others.
    pub is_try: bool,
}

impl Batch {
    /// Publishes the messages.
    pub(super) async fn publish(self, sink: Option<Arc<dyn Sink>>, deadline: Instant) -> Done {
        let started = Instant::now();
        let (outgoing, tags): (Vec<_>, Vec<_>) = self.items.into_iter().map(|item| (item.outgoing, item.tag)).unzip();
        let progress = outgoing.first().and_then(|first| first.progress.clone());
        let outcomes = match sink {
            Some(sink) => publish(&*sink, &outgoing, deadline).await,
            None => Vec::new(),
        };
        let counts = count(&outgoing);
        let lost = || Err(PublishError::Unconfirmed("the sink returned no outcome for it".into()));
        let outcomes = outcomes.into_iter().chain(std::iter::repeat_with(lost));
        let destinations = outgoing.into_iter().map(|message| message.destination);
        let outcomes = tags.into_iter().zip(destinations).zip(outcomes);
        let outcomes = outcomes.map(|((tag, destination), outcome)| (tag, destination, outcome)).collect();
        let outlet = self.outlet;
        let took = started.elapsed();
        Done { outlet, started, took, progress, outcomes, counts }
    }
}

/// The outcome of a batch.
pub struct Done {
    /// The outlet that it went to.
    pub(super) outlet: usize,
    /// The time at which the batch was handed in.
    pub started: Instant,
    pub(super) took: Duration,
    /// The progress of the batch; a batch of tries has none.
    pub(super) progress: Option<Progress>,
    /// The outcome of each message, and its destination.
    pub outcomes: Vec<(Tag, Arc<Destination>, Outcome)>,
    /// Messages and bytes by target.
    pub(super) counts: Vec<(String, usize, usize)>,
}

impl Done {
    /// Whether the batch ran into its deadline.
    #[must_use]
    pub fn is_late(&self, deadline: Duration) -> bool {
        is_late(self.took, deadline)
    }
}

/// Whether a batch ran into its deadline. Kafka's sink gives up at most a quarter of it early. A broker that refuses
/// slowly answers before that.
fn is_late(took: Duration, deadline: Duration) -> bool {
    took * 10 >= deadline * 7
}

/// Publishes a batch. A sink that overruns its deadline is faulty, and its messages must not wait for ever.
async fn publish(sink: &dyn Sink, outgoing: &[Outgoing], deadline: Instant) -> Vec<Outcome> {
    let publish = sink.publish(outgoing, deadline);
    match tokio::time::timeout_at((deadline + GRACE).into(), publish).await {
        Ok(outcomes) => outcomes,
        Err(_) => {
            tracing::error!("a sink did not keep its deadline");
            Vec::new()
        }
    }
}

fn bytes(message: &Outgoing) -> usize {
    message.contents.payload.as_ref().map_or(0, Vec::len)
}

pub(super) fn load(item: &Item) -> usize {
    room::load(1, bytes(&item.outgoing))
}

/// Returns messages and bytes by target.
fn count(outgoing: &[Outgoing]) -> Vec<(String, usize, usize)> {
    let mut counts: Vec<(String, usize, usize)> = Vec::new();
    for group in outgoing.chunk_by(|a, b| Arc::ptr_eq(&a.destination, &b.destination)) {
        let bytes = group.iter().map(bytes).sum();
        let Some(first) = group.first() else { continue };
        match counts.iter_mut().find(|(target, ..)| *target == first.destination.target) {
            Some(count) => {
                count.1 += group.len();
                count.2 += bytes;
            }
            None => counts.push((first.destination.target.clone(), group.len(), bytes)),
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_late_that_nobody_answered_and_not_one_that_was_refused_slowly() {
        let late = [600, 750, 1000].map(|took| is_late(Duration::from_millis(took), Duration::from_secs(1)));
        assert_eq!(late, [false, true, true]);
    }
}
