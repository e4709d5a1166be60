//! Keeps the order of a key over several batches in flight.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Turns away every batch that was handed in before the caller could know that an earlier batch failed.
///
/// The later batch may hold messages of the same keys; if it went out, they would overtake those that failed.
#[derive(Debug, Default)]
pub(super) struct Fence {
    /// How many failed batches have been returned to the caller.
    returned: AtomicU64,
    /// How many batches have failed and are not yet returned.
    failing: AtomicUsize,
}

/// What a batch's caller could know when it handed the batch in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(u64);

impl Fence {
    /// Taken when a batch is handed in.
    pub(super) fn ticket(&self) -> Ticket {
        Ticket(self.returned.load(Ordering::SeqCst))
    }

    /// Whether no batch failed that the holder of this ticket did not know of.
    pub(super) fn admits(&self, ticket: Ticket) -> bool {
        self.failing.load(Ordering::SeqCst) == 0 && self.ticket() == ticket
    }

    /// A batch has failed, at least in part.
    pub(super) fn close(&self) {
        self.failing.fetch_add(1, Ordering::SeqCst);
    }

    /// The failed batch goes back to its caller. Older tickets become void first, so that there is no moment at which
    /// one would be admitted.
    pub(super) fn open(&self) {
        self.returned.fetch_add(1, Ordering::SeqCst);
        self.failing.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::Fence;

    #[test]
    fn a_batch_handed_in_before_a_failure_was_returned_is_turned_away() {
        let fence = Fence::default();
        let before = fence.ticket();
        assert!(fence.admits(before));
        fence.close();
        let during = fence.ticket();
        assert!(!fence.admits(before) && !fence.admits(during));
        fence.open();
        assert!(!fence.admits(before) && !fence.admits(during));
        assert!(fence.admits(fence.ticket()));
    }

    #[test]
    fn the_fence_stays_closed_until_all_failed_batches_are_returned() {
        let fence = Fence::default();
        fence.close();
        fence.close();
        fence.open();
        assert!(!fence.admits(fence.ticket()));
        fence.open();
        assert!(fence.admits(fence.ticket()));
    }
}
