//! The decided offsets of a partition, and the position at which another member would begin.

use std::collections::BTreeSet;

/// The offsets of one partition that were received and are not decided.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    open: BTreeSet<i64>,
    /// One past the last offset that was received.
    next: i64,
    stored: i64,
}

impl Offsets {
    /// A message was received; false: it is in flight already.
    pub(super) fn received(&mut self, offset: i64) -> bool {
        self.next = offset + 1;
        self.open.insert(offset)
    }

    /// A message is decided. Returns the first position that is not decided, if it has changed.
    pub(super) fn decided(&mut self, offset: i64) -> Option<i64> {
        self.open.remove(&offset);
        let position = self.open.first().copied().unwrap_or(self.next);
        let moved = position != self.stored && position > 0;
        self.stored = position;
        moved.then_some(position)
    }

    /// The number of messages in flight.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::Offsets;

    #[test]
    fn nothing_behind_an_undecided_message_is_committed() {
        let mut offsets = Offsets::default();
        for offset in [7, 8, 9, 12] {
            assert!(offsets.received(offset));
        }
        assert!(!offsets.received(12), "it is in flight");
        assert_eq!(offsets.decided(9), Some(7), "so that a gap before the first is remembered");
        assert_eq!(offsets.decided(8), None);
        assert_eq!(offsets.decided(7), Some(12), "offsets can have gaps");
        assert_eq!(offsets.len(), 1);
        assert_eq!(offsets.decided(12), Some(13));
    }

    #[test]
    fn the_first_offset_of_all_is_not_committed_before_it_is_decided() {
        let mut offsets = Offsets::default();
        assert!(offsets.received(0) && offsets.received(1));
        assert_eq!(offsets.decided(1), None);
        assert_eq!(offsets.decided(0), Some(2));
    }
}
