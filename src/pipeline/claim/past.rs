//! Looks past keys with many rows that cannot be claimed yet.
//!
//! Such rows fill look after look until all have moved into the queues of their keys: 7 s for 100,000, in which nothing
//! else was claimed. So every other look leaves out the keys of which the one before saw little else.

use std::time::{Duration, Instant};

use super::window::Selection;

/// Most keys that a look leaves out.
const MOST: usize = 64;

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

    /// Notes that a look left out keys, and its duration. It reads all rows of them, millions perhaps, and so it gets
    /// half of the time at most.
    pub(super) fn took(&mut self, duration: Duration) {
        self.rests_until = Instant::now() + duration;
    }

    /// Chooses the keys after a look with this limit that left out none.
    pub(super) fn choose(&mut self, selection: &Selection, limit: usize) {
        self.keys.clear();
        if selection.behind.len() > limit / 2 {
            self.keys.extend(selection.behind.iter().map(|row| row.key_hash));
            self.keys.sort_unstable();
            self.keys.dedup();
            self.keys.truncate(MOST);
        }
    }
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
        past.choose(&behind(0..100), 100);
        assert_eq!(past.take().len(), MOST);
    }

    #[test]
    fn after_a_long_look_past_keys_come_looks_at_all() {
        let mut past = Past::new();
        past.took(Duration::from_secs(60));
        past.choose(&behind([7]), 1);
        assert!(past.take().is_empty());
        past.took(Duration::ZERO);
        assert_eq!(past.take(), [7]);
    }
}
