//! A small set of message ids.

use std::fmt;

/// Ids from 1 to 7.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ids(u8);

impl Ids {
    pub(crate) fn contains(self, id: u64) -> bool {
        self.0 & bit(id) != 0
    }

    pub(crate) fn insert(&mut self, id: u64) {
        self.0 |= bit(id);
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.0 &= !bit(id);
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The ids in ascending order.
    pub(crate) fn iter(self) -> impl Iterator<Item = u64> {
        (1..8).filter(move |id| self.contains(*id))
    }

    pub(crate) fn first(self) -> Option<u64> {
        self.iter().next()
    }

    pub(crate) fn last(self) -> Option<u64> {
        self.iter().last()
    }
}

fn bit(id: u64) -> u8 {
    1 << id
}

impl FromIterator<u64> for Ids {
    fn from_iter<T: IntoIterator<Item = u64>>(ids: T) -> Self {
        let mut set = Self::default();
        ids.into_iter().for_each(|id| set.insert(id));
        set
    }
}

impl fmt::Debug for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
