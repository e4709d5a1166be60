//! The decided offsets of a partition, and the position at which another member would begin.

use std::{collections::BTreeMap, mem};

use outbox_core::Uuid;

/// The offsets of one partition that were received and are not decided.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    /// The message at each offset, and the turn in which it was received.
    open: BTreeMap<i64, (Uuid, u64)>,
    /// One past the last offset that was received.
    next: i64,
    stored: i64,
}

impl Offsets {
    /// Whether a message at this offset shows that the partition has begun anew: offsets only rise otherwise.
    pub(super) fn begins_anew_at(&self, offset: i64) -> bool {
        offset < self.next
    }

    /// Goes back to this offset. Returns the one that was expected.
    pub(super) fn begin_anew(&mut self, offset: i64) -> i64 {
        mem::replace(&mut self.next, offset)
    }

    /// A message was received; false: it is in flight already.
    ///
    /// After a new beginning, the offsets in flight above it are those of earlier records. They hold no position back
    /// until the same message is received there again. Another message takes the place of the earlier one, which is
    /// still processed.
    pub(super) fn received(&mut self, offset: i64, id: Uuid, turn: u64) -> bool {
        self.open.retain(|open, _| !(self.next..offset).contains(open));
        self.next = offset + 1;
        let is_known = self.open.get(&offset).is_some_and(|(open, _)| *open == id);
        if !is_known {
            self.open.insert(offset, (id, turn));
        }
        !is_known
    }

    /// The message that was received in this turn is decided. Returns the first position that is not decided, if it has
    /// changed.
    pub(super) fn decided(&mut self, offset: i64, turn: u64) -> Option<i64> {
        if self.open.get(&offset).is_none_or(|(_, received)| *received != turn) {
            return None;
        }
        self.open.remove(&offset);
        let position = self.position();
        let moved = position != self.stored && position > 0;
        self.stored = position;
        moved.then_some(position)
    }

    /// The first position that is not decided.
    pub(super) fn position(&self) -> i64 {
        self.open.first_key_value().map_or(self.next, |(first, _)| self.next.min(*first))
    }

    /// The number of messages in flight.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::Uuid;

    use super::Offsets;

    const TURN: u64 = 1;

    /// The message at this offset of the topic that was made as number `topic`.
    fn id(topic: u64, offset: i64) -> Uuid {
        Uuid::from_u64_pair(topic, offset.cast_unsigned())
    }

    fn receive(offsets: &mut Offsets, numbers: &[i64]) {
        for offset in numbers {
            assert!(!offsets.begins_anew_at(*offset) && offsets.received(*offset, id(1, *offset), TURN));
        }
    }

    #[test]
    fn nothing_behind_an_undecided_message_is_committed() {
        let mut offsets = Offsets::default();
        receive(&mut offsets, &[7, 8, 9, 12]);
        assert_eq!(offsets.decided(9, TURN), Some(7), "so that a gap before the first is remembered");
        assert_eq!(offsets.decided(8, TURN), None);
        assert_eq!(offsets.decided(7, TURN), Some(12), "offsets can have gaps");
        assert_eq!(offsets.len(), 1);
        assert_eq!(offsets.decided(12, TURN), Some(13));
    }

    #[test]
    fn the_first_offset_of_all_is_not_committed_before_it_is_decided() {
        let mut offsets = Offsets::default();
        receive(&mut offsets, &[0, 1]);
        assert_eq!(offsets.decided(1, TURN), None);
        assert_eq!(offsets.decided(0, TURN), Some(2));
    }

    #[test]
    fn another_message_at_the_offset_of_one_in_flight_is_new() {
        let mut offsets = Offsets::default();
        receive(&mut offsets, &[0, 1, 2]);
        assert_eq!((offsets.decided(0, TURN), offsets.decided(1, TURN)), (Some(1), Some(2)));
        assert!(offsets.begins_anew_at(0));
        assert_eq!(offsets.begin_anew(0), 3);
        for offset in 0..4 {
            assert!(offsets.received(offset, id(2, offset), 2), "{offset}");
        }
        assert_eq!(offsets.decided(2, TURN), None, "the earlier message at this offset");
        assert_eq!((offsets.decided(2, 2), offsets.decided(3, 2)), (None, None));
        assert_eq!((offsets.decided(0, 2), offsets.decided(1, 2)), (Some(1), Some(4)));
    }

    /// As after an unclean election: the records up to 4 are the same ones, those behind them are others.
    #[test]
    fn a_message_in_flight_below_a_new_beginning_still_holds_the_position() {
        let mut offsets = Offsets::default();
        receive(&mut offsets, &[1, 2, 3, 4, 5]);
        assert_eq!(offsets.decided(2, TURN), Some(1));
        assert_eq!(offsets.begin_anew(4), 6);
        assert!(!offsets.received(4, id(1, 4), 2), "it is in flight");
        assert!(offsets.received(5, id(2, 5), 2));
        assert_eq!((offsets.decided(3, TURN), offsets.decided(4, TURN), offsets.decided(5, 2)), (None, None, None));
        assert_eq!(offsets.decided(1, TURN), Some(6));
    }

    #[test]
    fn offsets_of_records_that_are_gone_hold_nothing() {
        let mut offsets = Offsets::default();
        receive(&mut offsets, &[0, 7, 8]);
        assert_eq!(offsets.decided(0, TURN), Some(7));
        assert_eq!(offsets.begin_anew(3), 9);
        assert!(offsets.received(3, id(2, 3), 2));
        assert_eq!(offsets.position(), 3);
        assert_eq!(offsets.decided(3, 2), Some(4), "7 was not received again yet");
        assert!(offsets.received(8, id(2, 8), 2));
        assert_eq!((offsets.decided(8, 2), offsets.len()), (Some(9), 0), "the new topic has no 7");
    }
}
