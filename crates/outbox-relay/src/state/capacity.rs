//! The room for messages in flight, shared by the lanes: a slow lane must not take the room of all.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::settings;

/// The room for messages in flight.
#[derive(Debug, Clone)]
pub struct Capacity {
    /// Messages.
    pub messages: Pool,
    /// Bytes, in KiB.
    pub kib: Pool,
}

/// The room of a claim.
#[derive(Debug)]
pub struct ClaimRoom {
    /// Room for its messages, held until it is settled.
    pub messages: Share,
    /// Room for their bytes, in KiB, held until they are published.
    pub kib: Share,
}

impl Capacity {
    /// Takes the room that the configuration allows, at least that of one claim.
    #[must_use]
    pub fn new(relay: &settings::RelayConfig) -> Self {
        let kib = |bytes: usize| (bytes / 1024).max(1);
        Self {
            messages: Pool::new(relay.in_flight_messages, relay.claim_messages),
            kib: Pool::new(kib(relay.in_flight_bytes), kib(relay.claim_bytes)),
        }
    }

    /// Keeps room for this lane, too, from now on.
    pub fn serve(&self, lane: u16) {
        self.messages.serve(lane);
        self.kib.serve(lane);
    }

    /// Takes room for a claim of this lane, as [`Pool::take`].
    pub async fn take(&self, lane: u16) -> ClaimRoom {
        let messages = self.messages.take(lane).await;
        let kib = self.kib.take(lane).await;
        ClaimRoom { messages, kib }
    }
}

/// Places, of which each lane can have a reserve at any time, and more if no other lane needs them.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Permits>);

#[derive(Debug)]
struct Permits {
    /// Most places of a share.
    claim: usize,
    state: Mutex<PoolState>,
    returned: Notify,
}

#[derive(Debug)]
struct PoolState {
    total: usize,
    /// Fewest places of a share, if a lane is alone.
    fewest: usize,
    taken: usize,
    /// The places of each lane.
    held: HashMap<u16, usize>,
}

/// The places that a lane has, until this is dropped.
#[derive(Debug)]
pub struct Share {
    pool: Pool,
    lane: u16,
    places: usize,
}

impl Pool {
    /// Creates a pool of this many places, at least those of one claim.
    #[must_use]
    pub fn new(total: usize, claim: usize) -> Self {
        let state = PoolState { total: total.max(claim), fewest: claim, taken: 0, held: HashMap::new() };
        Self(Arc::new(Permits { claim, state: Mutex::new(state), returned: Notify::new() }))
    }

    /// Changes the number of places, and the fewest that a lane takes if it is alone. Shares that are taken stay.
    pub fn resize(&self, total: usize, fewest: usize) {
        let state = &mut *self.0.state.lock();
        (state.total, state.fewest) = (total, fewest.min(total).min(self.0.claim));
        self.0.returned.notify_waiters();
    }

    /// Keeps places for this lane, too, from now on.
    pub fn serve(&self, lane: u16) {
        self.0.state.lock().held.entry(lane).or_default();
    }

    /// Takes the most places of a share, or as many as are free and the reserves of other lanes leave. Waits until
    /// these are at least the lane's reserve.
    pub async fn take(&self, lane: u16) -> Share {
        loop {
            let returned = self.0.returned.notified();
            if let Some(places) = self.try_take(lane) {
                return Share { pool: self.clone(), lane, places };
            }
            returned.await;
        }
    }

    fn try_take(&self, lane: u16) -> Option<usize> {
        let state = &mut *self.0.state.lock();
        state.held.entry(lane).or_default();
        // The reserve of a single lane is the fewest places of a share, for a relay those of a claim. Of several lanes,
        // each has at most that, and all have at most half of the places, but one each. The other half goes where it is
        // needed. No lane has a reserve if there are more lanes than places.
        let reserve = match state.held.len() {
            1 => state.fewest,
            lanes => (state.total / 2 / lanes).max(usize::from(lanes <= state.total)).min(state.fewest),
        };
        let others = state.held.iter().filter(|(other, _)| **other != lane);
        let kept: usize = others.map(|(_, held)| reserve.saturating_sub(*held)).sum();
        let free = state.total.saturating_sub(state.taken);
        let places = self.0.claim.min(free.saturating_sub(kept));
        if places < reserve.max(1) {
            return None;
        }
        state.taken += places;
        state.held.entry(lane).and_modify(|held| *held += places);
        Some(places)
    }
}

impl ClaimRoom {
    /// Divides the room: the other part has this much, or as much as there is.
    #[must_use]
    pub fn split(&mut self, messages: usize, kib: usize) -> Self {
        Self { messages: self.messages.split(messages), kib: self.kib.split(kib) }
    }
}

impl Share {
    /// Returns the number of places.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places
    }

    /// Divides the share: the other part has `places`, or as many as there are.
    #[must_use]
    pub fn split(&mut self, places: usize) -> Self {
        let places = places.min(self.places);
        self.places -= places;
        Self { pool: self.pool.clone(), lane: self.lane, places }
    }

    /// Gives back the places beyond `needed`.
    pub fn trim(&mut self, needed: usize) {
        let surplus = self.places.saturating_sub(needed);
        if surplus == 0 {
            return;
        }
        self.places -= surplus;
        let state = &mut *self.pool.0.state.lock();
        state.taken -= surplus;
        state.held.entry(self.lane).and_modify(|held| *held -= surplus);
        self.pool.0.returned.notify_waiters();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::{Pool, Share};

    fn share(pool: &Pool, lane: u16) -> Option<Share> {
        let places = pool.try_take(lane)?;
        Some(Share { pool: pool.clone(), lane, places })
    }

    fn shares(pool: &Pool, lane: u16) -> Vec<Share> {
        std::iter::from_fn(|| share(pool, lane)).collect()
    }

    fn places(shares: &[Share]) -> usize {
        shares.iter().map(Share::places).sum()
    }

    #[test]
    fn one_lane_alone_gets_everything() {
        let pool = Pool::new(12_000, 1000);
        assert_eq!(shares(&pool, 0).len(), 12);
    }

    #[test]
    fn a_claim_is_kept_for_each_other_lane() {
        let pool = Pool::new(12_000, 1000);
        pool.serve(1);
        let slow = shares(&pool, 0);
        assert_eq!(places(&slow), 11_000);
        let quick = share(&pool, 1);
        assert_eq!(quick.as_ref().map(Share::places), Some(1000));
        assert!(share(&pool, 1).is_none() && share(&pool, 0).is_none());
        drop(quick);
        assert!(share(&pool, 0).is_none() && share(&pool, 1).is_some());
    }

    #[test]
    fn of_many_lanes_none_is_left_without_and_the_slow_ones_take_no_more_than_there_is() {
        let pool = Pool::new(1200, 100);
        (0..60).for_each(|lane| pool.serve(lane));
        let slow: Vec<Share> = (0..30).flat_map(|lane| shares(&pool, lane)).collect();
        assert!(places(&slow) <= 1200 - 30 * 10, "{}", places(&slow));
        assert!((30..60).all(|lane| share(&pool, lane).is_some_and(|share| share.places() >= 10)));
    }

    #[test]
    fn of_as_many_lanes_as_places_each_has_one() {
        let pool = Pool::new(100, 100);
        (0..100).for_each(|lane| pool.serve(lane));
        let slow: Vec<Share> = shares(&pool, 0);
        assert_eq!(places(&slow), 1);
        assert!((1..100).all(|lane| share(&pool, lane).is_some()));
    }

    #[test]
    fn of_more_lanes_than_places_each_has_its_turn() {
        let pool = Pool::new(100, 100);
        (0..500).for_each(|lane| pool.serve(lane));
        for lane in 0..500 {
            assert_eq!(share(&pool, lane).map(|share| share.places()), Some(100));
        }
    }

    #[test]
    fn the_parts_of_a_share_are_given_back_each_for_itself_and_a_smaller_pool_waits_for_them() {
        let pool = Pool::new(10, 10);
        let mut whole = share(&pool, 0).unwrap();
        let part = whole.split(4);
        assert_eq!((part.places(), whole.places(), whole.split(7).places()), (4, 6, 6));
        pool.resize(5, 2);
        assert!(share(&pool, 0).is_none(), "four of five places are taken");
        drop(part);
        assert_eq!(share(&pool, 0).map(|share| share.places()), Some(5));
    }

    #[tokio::test]
    async fn what_is_given_back_goes_to_who_waits() {
        let pool = Pool::new(10, 10);
        let mut first = pool.take(0).await;
        let second = pool.take(0);
        let (second, ()) = tokio::join!(second, async {
            tokio::task::yield_now().await;
            first.trim(3);
            drop(first);
        });
        assert_eq!(second.places(), 10);
    }
}
