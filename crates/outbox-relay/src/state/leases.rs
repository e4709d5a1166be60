//! The claims of this process, and whether it still holds them.
//!
//! A lease is the right to publish the messages of a claim and to write their outcomes back. The database's clock
//! decides when it ends. By its own monotonic clock, this process only knows that a lease lasts at least `lease` from
//! the moment at which the last renewal was *sent*. It starts no publish that could last longer. The token fences all
//! its writes in any case: a process whose claim was taken over changes nothing.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::store::claim::{Pending, lease::ClaimLease};
use parking_lot::Mutex;

/// A claim that this process holds or held.
#[derive(Debug)]
pub struct Tenure {
    /// The claim and its token. Parts of a tail are numbered instead.
    pub lease: ClaimLease,
    /// The number of the claim in the database; of a part, when its rows were taken.
    pub claim_id: u64,
    /// The lane.
    pub lane: u16,
    /// The messages, in order.
    pub ids: Vec<u64>,
    /// Their keys, sorted, without 0 and without repetition.
    pub keys: Vec<u64>,
    /// Keys whose queue must be read on after one of their messages is sent.
    pub queued: Vec<u64>,
    /// The first and the last message of each key, if it is a part of a tail.
    pub spans: BTreeMap<u64, (u64, u64)>,
    /// Whether it is a part of a tail: only its token is in the database.
    pub is_part: bool,
    until: Arc<Mutex<Instant>>,
    hold: Mutex<Hold>,
}

/// How this process holds a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    Held,
    /// It is being settled, and may vanish from the database. `may_return`: some of its rows may be pending again then,
    /// those of unsent messages.
    Settling {
        may_return: bool,
    },
    /// Its row is gone: its messages are pending again.
    Lost,
    /// Its outcomes cannot be written back: it is left to its lease.
    Abandoned,
}

impl Hold {
    const fn is_ours(self) -> bool {
        matches!(self, Self::Held | Self::Settling { .. })
    }
}

impl Tenure {
    /// Creates a claim that is live at least until then.
    #[must_use]
    pub fn new(lease: ClaimLease, lane: u16, ids: Vec<u64>, keys: Vec<u64>, until: Instant) -> Self {
        Self {
            lease,
            claim_id: lease.claim_id,
            lane,
            ids,
            keys,
            queued: Vec::new(),
            spans: BTreeMap::new(),
            is_part: false,
            until: Arc::new(Mutex::new(until)),
            hold: Mutex::new(Hold::Held),
        }
    }

    /// Creates a part of a tail, all of whose parts share a lease. `claim_id` is the tail's number in the database.
    #[must_use]
    pub fn part(lease: ClaimLease, claim_id: u64, lane: u16, rows: &[Pending], until: &Arc<Mutex<Instant>>) -> Self {
        let mut spans = BTreeMap::new();
        for row in rows.iter().filter(|row| row.key_hash != 0) {
            let (first, last) = spans.entry(row.key_hash).or_insert((row.id, row.id));
            (*first, *last) = (row.id.min(*first), row.id.max(*last));
        }
        let mut ids: Vec<u64> = rows.iter().map(|row| row.id).collect();
        ids.sort_unstable();
        let keys = spans.keys().copied().collect();
        let part = Self::new(lease, lane, ids, keys, Instant::now());
        Self { claim_id, spans, is_part: true, until: Arc::clone(until), ..part }
    }

    /// Whether this claim in the database is it, or the tail that it is a part of.
    #[must_use]
    pub fn is(&self, lease: ClaimLease) -> bool {
        if self.is_part { self.lease.lease_token == lease.lease_token } else { self.lease == lease }
    }

    /// Whether the claim is among these.
    #[must_use]
    pub fn is_in(&self, live: &HashSet<ClaimLease>) -> bool {
        if self.is_part { live.iter().any(|lease| self.is(*lease)) } else { live.contains(&self.lease) }
    }

    /// Whether the lease surely lasts for this duration.
    #[must_use]
    pub fn lasts(&self, time: Duration) -> bool {
        self.hold.lock().is_ours() && Instant::now() + time <= *self.until.lock()
    }

    /// Notes a renewal: the lease lasts at least until then.
    pub fn prolong(&self, until: Instant) {
        *self.until.lock() = until;
    }

    /// Whether the loss of the lease was noted.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        *self.hold.lock() == Hold::Lost
    }

    /// Notes that the lease is lost. Returns whether it was not noted before.
    pub fn lose(&self) -> bool {
        let mut hold = self.hold.lock();
        let is_new = hold.is_ours();
        if is_new {
            *hold = Hold::Lost;
        }
        is_new
    }

    /// Gives up a claim whose outcomes cannot be written back. It is not renewed, and its messages and those behind
    /// them are not claimed until a relay has taken it over.
    pub fn abandon(&self) {
        *self.hold.lock() = Hold::Abandoned;
    }

    /// Whether the claim is left to its lease.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        *self.hold.lock() == Hold::Abandoned
    }

    /// Notes that the claim is being settled and may vanish from the database. `may_return`: some of its rows may be
    /// pending again then, those of unsent messages.
    pub fn settle(&self, may_return: bool) {
        let mut hold = self.hold.lock();
        if hold.is_ours() {
            *hold = Hold::Settling { may_return };
        }
    }

    /// Whether the claim is being settled.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        matches!(*self.hold.lock(), Hold::Settling { .. })
    }

    /// Whether its rows may be pending again after the claim has vanished. All those of a claim that is lost or
    /// abandoned are.
    #[must_use]
    pub fn may_return(&self) -> bool {
        *self.hold.lock() != Hold::Settling { may_return: false }
    }
}

/// The claim of a tail, and the time until which its lease lasts at least.
#[derive(Debug, Clone)]
pub struct TailTenure {
    /// The claim.
    pub lease: ClaimLease,
    until: Arc<Mutex<Instant>>,
}

impl TailTenure {
    /// Notes a renewal.
    pub fn prolong(&self, until: Instant) {
        let mut last = self.until.lock();
        *last = until.max(*last);
    }
}

/// The claims that this process holds.
#[derive(Debug, Default)]
pub struct HeldClaims {
    claims: Mutex<BTreeMap<ClaimLease, Arc<Tenure>>>,
    /// The tails, by their tokens.
    tails: Mutex<HashMap<u64, TailTenure>>,
}

impl HeldClaims {
    /// Adds a claim.
    pub fn insert(&self, tenure: &Arc<Tenure>) {
        self.claims.lock().insert(tenure.lease, Arc::clone(tenure));
    }

    /// Adds a tail, or its successor. Only its parts are claims of their own here.
    pub fn stand(&self, lease: ClaimLease, until: &Arc<Mutex<Instant>>) {
        self.tails.lock().insert(lease.lease_token, TailTenure { lease, until: Arc::clone(until) });
    }

    /// The tails, to be renewed.
    #[must_use]
    pub fn tails(&self) -> Vec<TailTenure> {
        self.tails.lock().values().cloned().collect()
    }

    /// Forgets a tail that is over.
    pub fn end_standing(&self, token: u64) {
        self.tails.lock().remove(&token);
    }

    /// Whether this process still renews or settles this claim of the database.
    #[must_use]
    pub fn keeps(&self, lease: ClaimLease) -> bool {
        let is_kept = |tenure: &Arc<Tenure>| tenure.is(lease) && !tenure.is_abandoned();
        self.tails.lock().contains_key(&lease.lease_token) || self.claims.lock().values().any(is_kept)
    }

    /// Forgets a claim that was settled, released or lost.
    pub fn remove(&self, lease: ClaimLease) -> Option<Arc<Tenure>> {
        self.claims.lock().remove(&lease)
    }

    /// Forgets the abandoned claims of a lane that are no longer among the live ones.
    pub fn sweep(&self, lane: u16, live: &[ClaimLease]) {
        let live: HashSet<ClaimLease> = live.iter().copied().collect();
        let gone = |tenure: &Tenure| tenure.lane == lane && tenure.is_abandoned() && !tenure.is_in(&live);
        self.claims.lock().retain(|_, tenure| !gone(tenure));
    }

    /// Returns all claims.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Tenure>> {
        self.claims.lock().values().map(Arc::clone).collect()
    }

    /// Returns the claims of a lane.
    #[must_use]
    pub fn of_lane(&self, lane: u16) -> Vec<Arc<Tenure>> {
        self.claims.lock().values().filter(|tenure| tenure.lane == lane).map(Arc::clone).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(claim_id: u64) -> Arc<Tenure> {
        let until = Instant::now() + Duration::from_secs(600);
        Arc::new(Tenure::new(lease(claim_id), 0, Vec::new(), Vec::new(), until))
    }

    fn lease(claim_id: u64) -> ClaimLease {
        ClaimLease { claim_id, lease_token: 1 }
    }

    fn left(leases: &HeldClaims, lane: u16, live: &[u64]) -> Vec<u64> {
        leases.sweep(lane, &live.iter().copied().map(lease).collect::<Vec<_>>());
        leases.all().iter().map(|tenure| tenure.lease.claim_id).collect()
    }

    #[test]
    fn a_claim_that_is_lost_does_not_last_and_is_lost_once() {
        let tenure = held(1);
        assert!(tenure.lasts(Duration::from_secs(60)) && !tenure.lasts(Duration::from_secs(6000)));
        assert_eq!([tenure.lose(), tenure.lose()], [true, false]);
        tenure.prolong(Instant::now() + Duration::from_secs(600));
        assert!(!tenure.lasts(Duration::ZERO), "it is another's");
    }

    #[test]
    fn a_claim_that_was_abandoned_is_kept_until_the_database_has_it_no_longer() {
        let leases = HeldClaims::default();
        let abandoned = held(1);
        let other = held(2);
        leases.insert(&abandoned);
        leases.insert(&other);
        abandoned.abandon();
        assert_eq!(left(&leases, 0, &[1, 2]), [1, 2]);
        assert_eq!(left(&leases, 1, &[]), [1, 2], "it is of another lane");
        assert_eq!(left(&leases, 0, &[]), [2], "the other one may be on its way to be settled");
    }
}
