use std::cmp::Ordering;

use sqlx::{Connection as _, MySqlConnection};

use super::{Inbox, InboxError};
use crate::store;

/// The number of gaps of a key that are remembered: the latest ones.
const GAPS: usize = 64;

/// The place of a message's number among the numbers of its key that this consumer has processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequence {
    /// It is the next one, or the first of its key that this consumer sees.
    Next,
    /// Numbers before it are missing: lost, late, or dead at the relay.
    Gap {
        /// The number that should have come.
        expected: u64,
    },
    /// It was missing, is below the first that this consumer saw, or has an earlier epoch: it comes after later ones.
    Late,
    /// A message with this number was processed before, and the inbox does not know this one.
    Repeated,
}

/// The number of a sequenced message. Those of a later epoch come after all of an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SequenceNumber {
    /// The header [`EPOCH_HEADER`](crate::EPOCH_HEADER); 0 if it is missing.
    pub epoch: u64,
    /// The header [`SEQUENCE_HEADER`](crate::SEQUENCE_HEADER).
    pub number: u64,
}

impl From<u64> for SequenceNumber {
    /// A number from before the first recovery.
    fn from(number: u64) -> Self {
        Self { epoch: 0, number }
    }
}

impl Inbox {
    /// Notes the number of a sequenced message in the transaction of its work, and returns its place. Call it after the
    /// claim. A rollback takes the note back. One round trip for the next number, three for the first, four otherwise.
    ///
    /// Numbers come from `Message::sequenced` in the header `sequence`, their epoch in `sequence-epoch`. A consumer
    /// that starts in the middle of a key begins with the first number that it sees; a smaller number is
    /// [`Sequence::Late`]. With a later epoch the key begins anew: `relay recover` was run after a restore or a
    /// failover, and numbers may repeat. A number of an earlier epoch is then late, too, and is not noted.
    ///
    /// Errors are those of [`Inbox::claim`]. A topic of more than 249 bytes or beyond ASCII, and a key of more than
    /// 1,024 bytes, is an
    /// [`InboxError::Database`]: no message of the outbox has them.
    pub async fn follow(
        &self,
        conn: &mut MySqlConnection,
        topic: &str,
        key: &[u8],
        number: impl Into<SequenceNumber>,
    ) -> Result<Sequence, InboxError> {
        if !conn.is_in_transaction() {
            return Err(InboxError::NotInTransaction);
        }
        let number = number.into();
        let place = store::inbox::SequencedKey { consumer: &self.consumer, topic, key };
        // The first number of a key most likely finds no row, and a search for one locks a gap that its neighbours are
        // inserted into.
        if number.number > 1 && store::inbox::advance(conn, place, number).await? {
            return Ok(Sequence::Next);
        }
        let (highest, epoch, missing) = store::inbox::lock_sequence(conn, place).await?;
        let mut seen = match number.epoch.cmp(&epoch) {
            Ordering::Less => return Ok(Sequence::Late),
            Ordering::Equal => LastNumber::read(highest, &missing),
            Ordering::Greater => LastNumber { highest: 0, missing: Vec::new() },
        };
        let sequence = seen.note(number.number);
        let highest = SequenceNumber { number: seen.highest, ..number };
        store::inbox::write_sequence(conn, place, highest, &seen.gaps()).await?;
        Ok(sequence)
    }
}

/// The processed numbers of a key: all up to `highest` except these ranges, both ends included. Zero: none yet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LastNumber {
    highest: u64,
    missing: Vec<(u64, u64)>,
}

impl LastNumber {
    /// Gaps that were edited by hand and cannot be read count as none.
    fn read(highest: u64, gaps: &str) -> Self {
        Self { highest, missing: serde_json::from_str(gaps).unwrap_or_default() }
    }

    fn gaps(&self) -> String {
        serde_json::to_string(&self.missing).unwrap_or_else(|_never| "[]".to_owned())
    }

    fn note(&mut self, number: u64) -> Sequence {
        let sequence = self.place(number);
        // A number in the middle of a gap makes it two gaps, and the text must not outgrow its column.
        let surplus = self.missing.len().saturating_sub(GAPS);
        self.missing.drain(..surplus);
        sequence
    }

    fn place(&mut self, number: u64) -> Sequence {
        let expected = self.highest.saturating_add(1);
        if number < expected {
            return if self.fill(number) { Sequence::Late } else { Sequence::Repeated };
        }
        let first = self.highest == 0;
        self.highest = number;
        if number == expected {
            return Sequence::Next;
        }
        self.missing.push((expected, number - 1));
        if first { Sequence::Next } else { Sequence::Gap { expected } }
    }

    /// Takes a number out of the gaps; false: it is in none.
    fn fill(&mut self, number: u64) -> bool {
        let Some(place) = self.missing.iter().position(|(from, to)| (*from..=*to).contains(&number)) else {
            return false;
        };
        let (from, to) = self.missing.remove(place);
        // A gap that was edited by hand may reach the smallest or the largest number.
        let below = number.checked_sub(1).map(|last| (from, last));
        let above = number.checked_add(1).map(|first| (first, to));
        let rest = [below, above].into_iter().flatten().filter(|(from, to)| from <= to);
        self.missing.splice(place..place, rest);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_late_ones_and_repetitions_are_told_apart() {
        let mut seen = LastNumber { highest: 0, missing: Vec::new() };
        let steps = [
            (3, Sequence::Next),
            (4, Sequence::Next),
            (8, Sequence::Gap { expected: 5 }),
            (6, Sequence::Late),
            (6, Sequence::Repeated),
            (9, Sequence::Next),
            (5, Sequence::Late),
            (7, Sequence::Late),
            (7, Sequence::Repeated),
            (1, Sequence::Late),
            (1, Sequence::Repeated),
            (11, Sequence::Gap { expected: 10 }),
        ];
        for (number, expected) in steps {
            assert_eq!(seen.note(number), expected, "{number}");
        }
        assert_eq!(seen, LastNumber { highest: 11, missing: vec![(2, 2), (10, 10)] });
    }

    #[test]
    fn the_latest_gaps_are_remembered() {
        let mut seen = LastNumber { highest: 1, missing: Vec::new() };
        for number in 1..=100 {
            assert_eq!(seen.note(number * 2 + 1), Sequence::Gap { expected: number * 2 });
        }
        assert_eq!(seen.missing.len(), GAPS);
        assert_eq!((seen.note(200), seen.note(2)), (Sequence::Late, Sequence::Repeated));
    }
}

#[cfg(test)]
mod properties {
    use std::collections::BTreeSet;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// Bytes of the column `missing`.
    const COLUMN: usize = 65_535;

    /// Numbers that are likely to repeat, or to be at an end of the range.
    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![6 => 0..300_u64, 1 => u64::MAX - 3..=u64::MAX, 1 => any::<u64>()]
    }

    proptest! {
        /// A row may have been edited by hand.
        #[test]
        fn whatever_a_row_holds_each_number_has_a_place_and_the_gaps_fit_into_their_column(
            highest in number(),
            gaps in prop_oneof![
                vec((number(), number()), 0..100).prop_map(|gaps| serde_json::to_string(&gaps).unwrap_or_default()),
                "[\\[\\]0-9, .eE-]{0,30}",
                any::<String>(),
            ],
            numbers in vec(number(), 1..8),
        ) {
            let mut seen = LastNumber::read(highest, &gaps);
            prop_assert!(seen.missing.capacity() <= gaps.len().max(4), "room for more than the text can hold");
            for number in numbers {
                seen.note(number);
                let gaps = seen.gaps();
                prop_assert!(seen.missing.len() <= GAPS && gaps.len() <= COLUMN);
                let back = LastNumber::read(seen.highest, &gaps);
                prop_assert_eq!(&back, &seen);
                seen = back;
            }
        }

        #[test]
        fn each_number_is_told_apart_by_those_that_came_before(numbers in vec(1..60_u64, 0..80)) {
            let mut seen = LastNumber::read(0, "[]");
            let mut processed = BTreeSet::<u64>::new();
            for number in numbers {
                let highest = processed.last().copied().unwrap_or(0);
                let expected = if processed.contains(&number) {
                    Sequence::Repeated
                } else if number < highest {
                    Sequence::Late
                } else if highest == 0 || number == highest + 1 {
                    Sequence::Next
                } else {
                    Sequence::Gap { expected: highest + 1 }
                };
                prop_assert_eq!(seen.note(number), expected);
                processed.insert(number);
            }
        }

        /// In any order of the numbers that fill a wide gap.
        #[test]
        fn a_gap_that_is_filled_here_and_there_is_remembered_in_few_parts(late in vec(2..100_000_u64, 0..150)) {
            let mut seen = LastNumber::read(1, "[]");
            prop_assert_eq!(seen.note(100_000), Sequence::Gap { expected: 2 });
            for number in late {
                let sequence = seen.note(number);
                prop_assert!(matches!(sequence, Sequence::Late | Sequence::Repeated));
                prop_assert!(seen.missing.len() <= GAPS && seen.missing.is_sorted());
            }
        }
    }
}
