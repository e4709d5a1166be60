//! The messages that may be worked on at the same time: one of each key, in the order of arrival.

use std::collections::{HashMap, VecDeque};

/// Messages that wait behind another one of their key. A key is here while one of its messages is worked on.
#[derive(Debug)]
pub(crate) struct Keys<K, T>(HashMap<K, VecDeque<T>>);

impl<K: std::hash::Hash + Eq, T> Keys<K, T> {
    pub(crate) fn new() -> Self {
        Self(HashMap::new())
    }

    /// A message came; returns it if it may start now. One without a key always may.
    pub(crate) fn arrived(&mut self, key: Option<K>, message: T) -> Option<T> {
        let Some(key) = key else { return Some(message) };
        if let Some(waiting) = self.0.get_mut(&key) {
            waiting.push_back(message);
            return None;
        }
        self.0.insert(key, VecDeque::new());
        Some(message)
    }

    /// The message of this key is decided; returns the next one, which may start now.
    pub(crate) fn finished(&mut self, key: Option<&K>) -> Option<T> {
        let key = key?;
        let next = self.0.get_mut(key)?.pop_front();
        if next.is_none() {
            self.0.remove(key);
        }
        next
    }

    /// The message of this key that was at work is tried again, behind the last of those that must come before it.
    /// Returns the one that may start now, which can be the same.
    pub(crate) fn later(&mut self, key: Option<&K>, message: T, before: impl Fn(&T) -> bool) -> Option<T> {
        let Some(waiting) = key.and_then(|key| self.0.get_mut(key)) else { return Some(message) };
        let place = waiting.iter().rposition(before).map_or(0, |last| last + 1);
        waiting.insert(place, message);
        waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_message_at_work_and_the_others_in_order() {
        let mut keys = Keys::new();
        assert_eq!(keys.arrived(Some("a"), 1), Some(1));
        assert_eq!(keys.arrived(Some("a"), 2), None);
        assert_eq!(keys.arrived(Some("a"), 3), None);
        assert_eq!(keys.finished(Some(&"a")), Some(2));
        assert_eq!(keys.arrived(Some("a"), 4), None);
        assert_eq!(keys.finished(Some(&"a")), Some(3));
        assert_eq!(keys.finished(Some(&"a")), Some(4));
        assert_eq!(keys.finished(Some(&"a")), None);
        assert_eq!(keys.arrived(Some("a"), 5), Some(5), "the key is free again");
    }

    #[test]
    fn a_message_that_is_early_goes_behind_those_that_must_come_before_it() {
        let mut keys = Keys::new();
        assert_eq!(keys.arrived(Some("a"), 3), Some(3));
        assert_eq!(keys.later(Some(&"a"), 3, |it| *it < 3), Some(3), "there is no other");
        for number in [4, 2, 5] {
            assert_eq!(keys.arrived(Some("a"), number), None);
        }
        assert_eq!(keys.later(Some(&"a"), 3, |it| *it < 3), Some(4));
        assert_eq!(keys.later(Some(&"a"), 4, |it| *it < 4), Some(2));
        assert_eq!(keys.finished(Some(&"a")), Some(3));
        assert_eq!(keys.finished(Some(&"a")), Some(4));
        assert_eq!(keys.finished(Some(&"a")), Some(5));
    }

    #[test]
    fn other_keys_and_messages_without_key_wait_for_nobody() {
        let mut keys = Keys::new();
        assert_eq!(keys.arrived(Some("a"), 1), Some(1));
        assert_eq!(keys.arrived(Some("b"), 2), Some(2));
        assert_eq!(keys.arrived(None, 3), Some(3));
        assert_eq!(keys.arrived(None, 4), Some(4));
        assert_eq!(keys.finished(None), None);
    }
}
