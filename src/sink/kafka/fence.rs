//! Keeps the order of a key over several batches in flight.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Turns away every message that was handed in before the caller could know that an earlier one failed.
///
/// It may be of the same key; if it went out, it would overtake the one that failed.
#[derive(Debug, Default)]
pub(super) struct Fence(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// How many failed batches have been returned to the caller.
    returned: u64,
    /// How many batches have failed and are not yet returned.
    failing: usize,
}

/// What a batch's caller could know when it handed the batch in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(u64);

impl Fence {
    /// Taken when a batch is handed in.
    pub(super) fn ticket(&self) -> Ticket {
        Ticket(self.lock().returned)
    }

    /// Hands a message over, unless a batch failed that the holder of this ticket did not know of. None fails meanwhile: what is
    /// given up after a failure is all that was handed over before.
    pub(super) fn pass<T>(&self, ticket: Ticket, hand_over: impl FnOnce() -> T) -> Option<T> {
        let state = self.lock();
        (state.failing == 0 && state.returned == ticket.0).then(hand_over)
    }

    /// A batch has failed, at least in part.
    pub(super) fn close(&self) {
        self.lock().failing += 1;
    }

    /// The failed batch goes back to its caller, and older tickets become void.
    pub(super) fn open(&self) {
        let mut state = self.lock();
        state.returned += 1;
        state.failing -= 1;
    }

    /// Nothing that runs under this lock can leave it half-changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{Fence, Ticket};

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
