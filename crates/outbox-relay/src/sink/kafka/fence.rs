//! Keeps the order of a key over several batches in flight.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use crate::sink::PublishError;

/// Turns away every message that was handed in before the caller could know of an earlier failure.
///
/// Such a message may be of the same key; if it went out, it would overtake the failed one. If a topic takes nothing,
/// only messages for that topic are turned away.
#[derive(Debug, Default)]
pub(super) struct Fence(Mutex<FenceState>);

#[derive(Debug, Default)]
struct FenceState {
    /// The number of failed batches that were returned to the caller.
    returned: u64,
    /// The number of failed batches that are not yet returned.
    failing: usize,
    /// The number of times that a topic's refusal was returned to a caller.
    refusals: u64,
    topics: HashMap<String, TopicRefusal>,
}

/// The refusal of a whole topic.
#[derive(Debug)]
struct TopicRefusal {
    error: PublishError,
    /// The batches that have met it and are not yet returned.
    batches: HashSet<u32>,
    /// The value of `FenceState::refusals` when the last other batch was returned.
    returned: u64,
}

/// The caller's knowledge of failures when it handed a batch in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    failures: u64,
    refusals: u64,
}

impl Fence {
    /// Issues a ticket for a batch that is handed in.
    pub(super) fn ticket(&self) -> Ticket {
        let state = self.0.lock();
        Ticket { failures: state.returned, refusals: state.refusals }
    }

    /// Hands a message over, unless a batch failed of which the holder of this ticket did not know. No batch fails
    /// meanwhile: a failure gives up all that was handed over before.
    pub(super) fn pass<T>(&self, ticket: Ticket, hand_over: impl FnOnce() -> T) -> Option<T> {
        let state = self.0.lock();
        (state.failing == 0 && state.returned == ticket.failures).then(hand_over)
    }

    /// Notes that a batch has failed, at least in part.
    pub(super) fn close(&self) {
        self.0.lock().failing += 1;
    }

    /// Notes that a failed batch goes back to its caller. Older tickets become void.
    pub(super) fn open(&self) {
        let mut state = self.0.lock();
        state.returned += 1;
        state.failing -= 1;
    }

    /// Notes that a message of this batch has met a topic that takes nothing.
    pub(super) fn refuse(&self, topic: &str, batch: u32, error: PublishError) {
        let mut state = self.0.lock();
        let new = || TopicRefusal { error: error.clone(), batches: HashSet::new(), returned: 0 };
        let refusal = state.topics.entry(topic.to_owned()).or_insert_with(new);
        refusal.batches.insert(batch);
        refusal.error = error;
    }

    /// Returns why a message of this batch is turned away: its topic refused one that the holder of this ticket did not
    /// know of.
    pub(super) fn refusal(&self, topic: &str, batch: u32, ticket: Ticket) -> Option<PublishError> {
        let mut state = self.0.lock();
        let refusal = state.topics.get_mut(topic)?;
        let is_unknown = !refusal.batches.is_empty() || refusal.returned > ticket.refusals;
        is_unknown.then(|| {
            refusal.batches.insert(batch);
            refusal.error.clone()
        })
    }

    /// Notes that a batch goes back to its caller, with all refusals that it has met.
    pub(super) fn give_back(&self, batch: u32) {
        let state = &mut *self.0.lock();
        for refusal in state.topics.values_mut() {
            if refusal.batches.remove(&batch) {
                state.refusals += 1;
                refusal.returned = state.refusals;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Fence, PublishError, Ticket};

    fn admits(fence: &Fence, ticket: Ticket) -> bool {
        fence.pass(ticket, || ()).is_some()
    }

    #[test]
    fn a_batch_handed_in_before_a_failure_was_returned_is_turned_away() {
        let fence = Fence::default();
        let before = fence.ticket();
        assert!(admits(&fence, before));
        fence.close();
        let during = fence.ticket();
        assert!(!admits(&fence, before) && !admits(&fence, during));
        fence.open();
        assert!(!admits(&fence, before) && !admits(&fence, during));
        assert!(admits(&fence, fence.ticket()));
    }

    #[test]
    fn a_topic_that_refuses_turns_away_its_own_messages_until_their_caller_knows() {
        let fence = Fence::default();
        let is_refused = |topic, batch, ticket| fence.refusal(topic, batch, ticket).is_some();
        let before = fence.ticket();
        fence.refuse("missing", 1, PublishError::Unroutable { reason: "unroutable", detail: String::new() });
        assert!(is_refused("missing", 1, before) && is_refused("missing", 2, before));
        assert!(!is_refused("there", 2, before) && admits(&fence, before));
        fence.give_back(1);
        assert!(is_refused("missing", 3, fence.ticket()), "the second batch has met it, too");
        fence.give_back(2);
        fence.give_back(3);
        assert!(is_refused("missing", 4, before));
        fence.give_back(4);
        assert!(!is_refused("missing", 5, fence.ticket()));
    }

    #[test]
    fn the_fence_stays_closed_until_all_failed_batches_are_returned() {
        let fence = Fence::default();
        fence.close();
        fence.close();
        fence.open();
        assert!(!admits(&fence, fence.ticket()));
        fence.open();
        assert!(admits(&fence, fence.ticket()));
    }
}
