//! Looks past keys with many rows that cannot be claimed yet.
//!
//! Such rows fill look after look until all have moved into the queues of their keys: 7 s for 100,000, in which nothing
//! else was claimed. So every other look leaves out the keys that filled the one before.

use std::{
    cmp::Reverse,
    collections::HashMap,
    time::{Duration, Instant},
};

use super::window::{Selection, Start};

/// Most keys that a look leaves out.
const MOST: usize = 64;
/// A look past keys ends this many ids after its start: each of their rows takes 0.3 to 0.5 µs.
const REACH: u64 = 400_000;
/// A key with less than this part of a look's rows is not left out.
const FEW: usize = 100;

/// The keys that the next look leaves out.
pub(super) struct Past {
    keys: Vec<u64>,
    /// Until then no look leaves out anything.
    rests_until: Instant,
}

impl Past {
    pub(super) fn new() -> Self {
        Self { keys: Vec::new(), rests_until: Instant::now() }
    }

    /// Takes the keys that a look leaves out now. The look after it leaves out none.
    pub(super) fn take(&mut self) -> Vec<u64> {
        if self.rests_until > Instant::now() { Vec::new() } else { std::mem::take(&mut self.keys) }
    }

    /// Notes the duration of a look that left out keys. Such looks get half of the time at most.
    pub(super) fn took(&mut self, duration: Duration) {
        self.rests_until = Instant::now() + duration;
    }

    /// Chooses keys after a look that left out none. It was cut after this many rows.
    pub(super) fn choose(&mut self, selection: &Selection, seen: usize) {
        self.keys.clear();
        if selection.behind.len() <= seen / 2 {
            return;
        }
        let mut rows: HashMap<u64, usize> = HashMap::new();
        for row in &selection.behind {
            *rows.entry(row.key_hash).or_default() += 1;
        }
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_unstable_by_key(|(_, rows)| Reverse(*rows));
        rows.truncate(MOST);
        let is_many = |(_, rows): &(u64, usize)| *rows > seen / FEW;
        self.keys.extend(rows.into_iter().take_while(is_many).map(|(key, _)| key));
    }
}

/// The keys that a look leaves out, and its last id.
pub(super) fn without(keys: &[u64], start: Start) -> Option<(&[u64], u64)> {
    (!keys.is_empty()).then(|| (keys, start.id().saturating_add(REACH)))
}

#[cfg(test)]
mod tests {
    use outbox_core::store::claim::Pending;

    use super::*;

    fn behind(keys: impl IntoIterator<Item = u64>) -> Selection {
        let row = |key_hash| Pending { id: 1, key_hash, bytes: 10, attempts: 0, takeovers: 0 };
        Selection { behind: keys.into_iter().map(row).collect(), ..Selection::default() }
    }

    #[test]
    fn keys_that_fill_most_of_a_look_are_left_out_of_one() {
        let mut past = Past::new();
        past.choose(&behind([7, 8, 7]), 6);
        assert!(past.take().is_empty(), "half of a look");
        past.choose(&behind([7, 8, 7]), 5);
        assert_eq!((past.take(), past.take()), (vec![7, 8], vec![]));
        past.choose(&behind((0..99).chain([500; 101])), 200);
        assert_eq!(past.take(), [500], "one row of two hundred is few");
        past.choose(&behind((0..99).chain([500; 2])), 99);
        assert_eq!((past.keys.first(), past.keys.len()), (Some(&500), MOST), "the largest first");
    }

    #[test]
    fn after_a_long_look_past_keys_come_looks_at_all() {
        let mut past = Past::new();
        past.took(Duration::from_secs(60));
        past.choose(&behind([7, 7]), 2);
        assert!(past.take().is_empty());
        past.took(Duration::ZERO);
        assert_eq!(past.take(), [7]);
    }
}
