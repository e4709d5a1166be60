//! The lanes that wait for a message.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The lanes with a claimer, and those that were seen in the binary log.
#[derive(Debug, Default)]
pub struct Idle(Mutex<BTreeMap<u16, IdleLane>>);

#[derive(Debug, Default)]
struct IdleLane {
    woken: Arc<Notify>,
    waits: bool,
}

impl Idle {
    /// Waits until the lane is woken, or returns at once if it was since the last wait.
    pub async fn wait(&self, lane: u16) {
        self.set(lane, true).notified().await;
        self.set(lane, false);
    }

    fn set(&self, lane: u16, waits: bool) -> Arc<Notify> {
        let mut lanes = self.0.lock();
        let lane = lanes.entry(lane).or_default();
        lane.waits = waits;
        Arc::clone(&lane.woken)
    }

    /// Wakes a lane, which may have a message. Returns whether it was known before.
    pub fn wake(&self, lane: u16) -> bool {
        let mut lanes = self.0.lock();
        let is_known = lanes.contains_key(&lane);
        let lane = lanes.entry(lane).or_default();
        lane.waits = false;
        lane.woken.notify_one();
        is_known
    }

    /// Wakes all lanes, also those that are about to wait.
    pub fn wake_all(&self) {
        for lane in self.0.lock().values_mut() {
            lane.waits = false;
            lane.woken.notify_one();
        }
    }

    /// Whether the lane waits.
    #[must_use]
    pub fn contains(&self, lane: u16) -> bool {
        self.0.lock().get(&lane).is_some_and(|lane| lane.waits)
    }

    /// The number of lanes that wait.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.lock().values().filter(|lane| lane.waits).count()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_lane_that_was_woken_waits_no_more() {
        let idle = Arc::new(Idle::default());
        let waits = tokio::spawn({
            let idle = Arc::clone(&idle);
            async move { idle.wait(7).await }
        });
        while !idle.contains(7) {
            tokio::task::yield_now().await;
        }
        assert!(!idle.wake(8), "it was known");
        assert!(idle.wake(7));
        waits.await.unwrap();
        assert!(!idle.contains(7));
    }

    #[test]
    fn a_lane_that_was_woken_before_it_waits_does_not_wait() {
        let idle = Idle::default();
        idle.wake(7);
        idle.wake(7);
        assert!(idle.wait(7).now_or_never().is_some());
        assert_eq!((idle.contains(7), idle.wait(7).now_or_never()), (false, None));
    }
}
