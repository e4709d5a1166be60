//! The messages of a partition that wait behind an earlier one of their key.

use std::sync::atomic::{AtomicUsize, Ordering};

/// They may be this many times the window.
const WINDOWS: usize = 15;
/// Most bytes of their payloads beyond the window.
const BYTES: usize = 16 << 20;

/// Their number, and the bytes of their payloads.
#[derive(Debug, Default)]
pub(super) struct Queued {
    messages: AtomicUsize,
    bytes: AtomicUsize,
}

impl Queued {
    /// A message has begun to wait, or no longer waits.
    pub(super) fn note(&self, bytes: usize, waits: bool) {
        for (sum, change) in [(&self.messages, 1), (&self.bytes, bytes)] {
            if waits {
                sum.fetch_add(change, Ordering::Relaxed)
            } else {
                sum.fetch_sub(change, Ordering::Relaxed)
            };
        }
    }

    /// Whether a partition with this number of undecided messages may receive no more.
    pub(super) fn is_full(&self, undecided: usize, window: usize) -> bool {
        self.counted(undecided, window, 1) >= window
    }

    /// Whether those that wait fill their own room.
    pub(super) fn overflows(&self, window: usize) -> bool {
        !self.have_room(window, 1)
    }

    /// Whether a paused partition may go on: half of the room is free that was full. `overflowed`: that of those that
    /// wait was.
    pub(super) fn has_room_again(&self, undecided: usize, window: usize, overflowed: bool) -> bool {
        self.counted(undecided, window, if overflowed { 2 } else { 1 }) <= window / 2
    }

    /// The messages that count for the window. Those that wait count if they fill their own room, or this part of it.
    fn counted(&self, undecided: usize, window: usize, part: usize) -> usize {
        let queued = self.messages.load(Ordering::Relaxed);
        if self.have_room(window, part) { undecided.saturating_sub(queued) } else { undecided }
    }

    fn have_room(&self, window: usize, part: usize) -> bool {
        let queued = self.messages.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        queued < window.saturating_mul(WINDOWS) / part && bytes < BYTES / part
    }
}

#[cfg(test)]
mod tests {
    use super::Queued;

    fn queued(messages: usize, bytes: usize) -> Queued {
        let queued = Queued::default();
        (0..messages).for_each(|_| queued.note(bytes, true));
        queued
    }

    #[test]
    fn messages_behind_others_of_their_key_do_not_fill_the_window_until_they_are_too_many() {
        assert!(!queued(0, 0).is_full(9, 10) && queued(0, 0).is_full(10, 10));
        assert!(!queued(149, 9).is_full(149 + 9, 10) && queued(149, 9).is_full(149 + 10, 10));
        assert!(queued(150, 9).is_full(151, 10));
        assert!(queued(16, 1 << 20).is_full(17, 10), "too large");
        assert!(!queued(8, 2 << 20).is_full(9, 10), "the window itself is not bounded in bytes");
        let left = queued(150, 9);
        left.note(9, false);
        assert!(
            !left.is_full(150, 10) && !left.has_room_again(150, 10, true),
            "it goes on when half of the room is free"
        );
        assert!(queued(74, 9).has_room_again(74 + 5, 10, true) && !queued(74, 9).has_room_again(74 + 6, 10, true));
        assert!(queued(100, 9).has_room_again(100 + 5, 10, false), "a pause by the others ends with them");
        assert!(!queued(100, 9).overflows(10) && queued(150, 9).overflows(10));
        assert!(queued(0, 0).has_room_again(0, 1, false));
    }
}
