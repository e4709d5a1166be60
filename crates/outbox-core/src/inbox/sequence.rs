use sqlx::{Connection as _, MySqlConnection};

use super::{Inbox, InboxError};
use crate::store;

/// How many gaps of a key are remembered, the latest ones.
const GAPS: usize = 64;

/// How the number of a sequenced message fits to those of its key that this consumer has processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequence {
    /// It is the next one, or the first of its key that this consumer sees.
    Next,
    /// Numbers before it are missing: lost, late, or dead at the relay.
    Gap {
        /// The number that should have come.
        expected: u64,
    },
    /// It was missing, or is from before the first that this consumer saw: it comes after later ones.
    Late,
    /// A message with this number was processed before, and the inbox does not know this one.
    Repeated,
}

impl Inbox {
    /// Notes the number of a sequenced message in the transaction of its work, and says how it fits. Do it after the claim. Rolled
    /// back, it was not noted. One round trip for the next number, three for the first, four otherwise.
    ///
    /// Numbers come from `Message::sequenced` in the header `sequence`. A consumer that starts in the middle of a key begins
    /// with the number that it sees first; one that comes from before that is [`Sequence::Late`].
    ///
    /// Errors are those of [`Inbox::claim`]. A topic of more than 249 bytes or beyond ASCII, and a key of more than 1,024 bytes, is an
    /// [`InboxError::Database`]: no message of the outbox has them.
    pub async fn follow(
        &self,
        conn: &mut MySqlConnection,
        topic: &str,
        key: &[u8],
        number: u64,
    ) -> Result<Sequence, InboxError> {
        if !conn.is_in_transaction() {
            return Err(InboxError::NotInTransaction);
        }
        let place = store::inbox::SequencedKey { consumer: &self.consumer, topic, key };
        // The first number of a key most likely finds no row, and looking for one locks a gap that its neighbours are inserted into.
        if number > 1 && store::inbox::advance(conn, place, number).await? {
            return Ok(Sequence::Next);
        }
        let (highest, missing) = store::inbox::lock_sequence(conn, place).await?;
        let mut seen = Seen { highest, missing: serde_json::from_str(&missing).unwrap_or_default() };
        let sequence = seen.note(number);
        let missing = serde_json::to_string(&seen.missing).unwrap_or_else(|_never| "[]".to_owned());
        store::inbox::write_sequence(conn, place, seen.highest, &missing).await?;
        Ok(sequence)
    }
}

/// What was processed of a key: all up to `highest` but these ranges, both ends included. Zero: nothing yet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    highest: u64,
    missing: Vec<(u64, u64)>,
}

impl Seen {
    fn note(&mut self, number: u64) -> Sequence {
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
        let surplus = self.missing.len().saturating_sub(GAPS);
        self.missing.drain(..surplus);
        if first { Sequence::Next } else { Sequence::Gap { expected } }
    }

    /// Takes a number out of the gaps; false: it is in none.
    fn fill(&mut self, number: u64) -> bool {
        let Some(place) = self.missing.iter().position(|(from, to)| (*from..=*to).contains(&number)) else {
            return false;
        };
        let (from, to) = self.missing.remove(place);
        let rest = [(from, number - 1), (number + 1, to)].into_iter().filter(|(from, to)| from <= to);
        self.missing.splice(place..place, rest);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_late_ones_and_repetitions_are_told_apart() {
        let mut seen = Seen { highest: 0, missing: Vec::new() };
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
        assert_eq!(seen, Seen { highest: 11, missing: vec![(2, 2), (10, 10)] });
    }

    #[test]
    fn the_latest_gaps_are_remembered() {
        let mut seen = Seen { highest: 1, missing: Vec::new() };
        for number in 1..=100 {
            assert_eq!(seen.note(number * 2 + 1), Sequence::Gap { expected: number * 2 });
        }
        assert_eq!(seen.missing.len(), GAPS);
        assert_eq!((seen.note(200), seen.note(2)), (Sequence::Late, Sequence::Repeated));
    }
}
