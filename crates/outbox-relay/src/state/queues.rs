//! The state of keys' queues in this process. The queues are in the database (`outbox_core::store::claim::queue`). This module
//! notes which keys have the most messages in flight that they may have, and which queues must be read on.
//!
//! If a sink takes the messages of a key one by one, a busy key would fill claims and leave no room for others. So such
//! a claim has few messages of each key, and the rest goes into the queue. The publisher asks for more when few of them
//! are left.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A key in its lane: the lane, and the hash of topic and key.
pub(crate) type LaneKey = (u16, u64);

/// Most messages of a key in a claim, if a sink takes them one by one. At 1 ms each they last while the next ones are
/// fetched, which takes about 20 ms.
pub(crate) const AT_ONCE: usize = 128;
/// The same for a worker, whose claims are smaller: a look of its claimer sees 500 rows, and should see many keys.
const OF_WORKER: usize = 16;
/// With at most this many messages of a key in flight, the next ones are fetched.
pub(crate) const FEW: usize = AT_ONCE / 2;

/// The state of keys' queues that claimers, publisher and promotion share.
#[derive(Debug)]
pub struct Queues {
    at_once: usize,
    one_by_one: AtomicBool,
    crowded: Mutex<HashSet<LaneKey>>,
    /// At most one entry per key.
    wanted: Mutex<HashMap<LaneKey, Wanted>>,
    /// Lanes whose queues are left alone.
    resting: Mutex<HashSet<u16>>,
    asked: Notify,
}

/// A part of a queue to put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Only messages above this id.
    pub above: u64,
    /// The most rows.
    pub rows: usize,
}

impl Queues {
    /// Starts without any queue. A worker takes each key one by one, in claims of `claim_messages`.
    #[must_use]
    pub fn new(is_worker: bool, claim_messages: usize) -> Self {
        Self {
            at_once: if is_worker { OF_WORKER.max(2 * claim_messages) } else { AT_ONCE },
            one_by_one: AtomicBool::new(is_worker),
            crowded: Mutex::default(),
            wanted: Mutex::default(),
            resting: Mutex::default(),
            asked: Notify::new(),
        }
    }

    /// Notes that a sink or route takes a key one by one.
    pub(crate) fn go_one_by_one(&self) {
        self.one_by_one.store(true, Ordering::Relaxed);
    }

    /// Returns the most pending messages of a key that is not crowded.
    pub(crate) fn most_of_key(&self) -> usize {
        if self.one_by_one.load(Ordering::Relaxed) { self.at_once } else { usize::MAX }
    }

    /// Notes whether a key has the most messages in flight that it may have: then a claim takes only one of them.
    pub(crate) fn crowd(&self, key: LaneKey, is_crowded: bool) {
        let mut crowded = self.crowded.lock();
        if is_crowded {
            crowded.insert(key);
        } else {
            crowded.remove(&key);
        }
    }

    /// Returns the crowded keys of a lane.
    pub(crate) fn crowded(&self, lane: u16) -> HashSet<u64> {
        self.crowded.lock().iter().filter(|key| key.0 == lane).map(|key| key.1).collect()
    }

    /// Asks for the next part of a queue.
    pub(crate) fn want(&self, key: LaneKey, wanted: Wanted) {
        match self.wanted.lock().entry(key) {
            Entry::Occupied(mut other) => {
                let other = other.get_mut();
                *other = Wanted { above: other.above.min(wanted.above), rows: other.rows.max(wanted.rows) };
            }
            Entry::Vacant(vacant) => drop(vacant.insert(wanted)),
        }
        self.asked.notify_one();
    }

    /// Asks for the next part of a queue whose start is not known.
    pub(crate) fn want_first(&self, key: LaneKey) {
        self.want(key, Wanted { above: 0, rows: self.at_once });
    }

    /// Leaves the queues of a lane alone until the guard is dropped. Each part that is put back makes a look void, and
    /// one past many rows takes longer than such a part lasts.
    pub(crate) fn hold_still(&self, lane: u16) -> QueueRest<'_> {
        self.resting.lock().insert(lane);
        QueueRest { queues: self, lane }
    }

    /// Takes out wanted parts, at most this many.
    pub(crate) fn take_wanted(&self, most: usize) -> Vec<(LaneKey, Wanted)> {
        let mut wanted = self.wanted.lock();
        let resting = self.resting.lock();
        let mut keys: Vec<LaneKey> = wanted.keys().copied().filter(|key| !resting.contains(&key.0)).collect();
        if keys.len() > most {
            keys.truncate(most);
            self.asked.notify_one();
        }
        keys.into_iter().filter_map(|key| Some((key, wanted.remove(&key)?))).collect()
    }

    /// Waits until a part is wanted.
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }
}

/// The queues of a lane rest.
pub(crate) struct QueueRest<'a> {
    queues: &'a Queues,
    lane: u16,
}

impl Drop for QueueRest<'_> {
    fn drop(&mut self) {
        self.queues.resting.lock().remove(&self.lane);
        self.queues.asked.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_limited_once_a_sink_takes_one_by_one_and_crowded_each_for_itself() {
        let queues = Queues::new(false, 1000);
        let workers = [1, 100].map(|batch| Queues::new(true, batch).most_of_key());
        assert_eq!((queues.most_of_key(), workers), (usize::MAX, [OF_WORKER, 200]));
        queues.go_one_by_one();
        assert_eq!(queues.most_of_key(), AT_ONCE);
        queues.crowd((0, 7), true);
        queues.crowd((1, 8), true);
        assert_eq!((queues.crowded(0), queues.crowded(1)), ([7].into(), [8].into()));
        queues.crowd((0, 7), false);
        assert_eq!(queues.crowded(0), [].into());
    }

    #[test]
    fn what_is_wanted_twice_is_read_once_from_the_smaller_id_on() {
        let queues = Queues::new(false, 1000);
        queues.want((0, 7), Wanted { above: 9, rows: 128 });
        queues.want((0, 7), Wanted { above: 5, rows: 10 });
        assert_eq!(queues.take_wanted(1), [((0, 7), Wanted { above: 5, rows: 128 })]);
        assert_eq!(queues.take_wanted(1), []);
    }

    #[tokio::test]
    async fn what_is_wanted_of_a_lane_that_rests_waits_for_its_end() {
        let queues = Queues::new(false, 1000);
        queues.want((0, 7), Wanted { above: 9, rows: 128 });
        queues.want((1, 7), Wanted { above: 9, rows: 128 });
        queues.asked().await;
        let rest = queues.hold_still(0);
        assert_eq!(queues.take_wanted(2), [((1, 7), Wanted { above: 9, rows: 128 })]);
        drop(rest);
        queues.asked().await;
        assert_eq!(queues.take_wanted(2).len(), 1);
    }
}
