//! A claimer's knowledge of claims: those of other relays, and the messages and keys barred by them and by its own.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::store::claim::{ForeignClaim, Seen, lease::ClaimLease};

use crate::{pipeline::claim::window::Barred, state::leases::Tenure};

/// A claimer's knowledge of other relays.
#[derive(Debug, Default)]
pub struct Foreign {
    /// Their claims that were live at the last look.
    pub claims: BTreeMap<ClaimLease, ForeignClaim>,
    /// The newest claim seen: a look reads only newer ones whole.
    pub known: u64,
    /// No claim up to this one is live: a look skips them. Claims of a lane are made under the lock of its head, so a
    /// claim not seen yet is newer than all claims seen.
    pub gone: u64,
    /// The other relays that work on the lane, each with the time at which a new claim of it was last seen.
    peers: BTreeMap<String, Instant>,
}

/// A relay without a new claim for this duration is no longer counted.
const PEER_AGE: Duration = Duration::from_secs(5);

impl Foreign {
    /// Returns the number of relays that work on the lane.
    pub(super) fn relays(&mut self) -> u32 {
        self.peers.retain(|_, seen| seen.elapsed() < PEER_AGE);
        u32::try_from(self.peers.len()).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// Makes the next look read all claims again. A server that took over, or restored tables, may lack the last claims
    /// and give their ids again. Called with each full look and after each error, because the connection may be another
    /// one then.
    pub(super) fn forget_ids(&mut self) {
        (self.known, self.gone) = (0, 0);
    }

    /// Whether a live claim has the number of a known one but another token. Then claim numbers began again lower down,
    /// after a TRUNCATE or a restore. All claims must be read again before the next claim.
    #[must_use]
    pub fn misses(&self, seen: &Seen) -> bool {
        seen.passed.iter().any(|lease| !self.claims.contains_key(lease))
    }

    /// Updates the knowledge from a look. Returns what must not be claimed, by this look and by earlier ones.
    pub fn bar(&mut self, seen: &Seen, own: &[Arc<Tenure>]) -> Barred {
        let live: HashSet<ClaimLease> = seen.leases.iter().copied().collect();
        let mut barred = Barred::default();
        for tenure in own {
            let is_there = tenure.is_in(&live);
            let returns = !is_there && tenure.may_return();
            if is_there || returns {
                barred.ids.extend(&tenure.ids);
            }
            if returns || tenure.is_abandoned() {
                barred.keys.extend(&tenure.keys);
            }
        }
        // Known claims come first. The look did not search for the rows of a claim that has ended since. This pass
        // leaves them and their keys alone, and `low` stays below them, or the next look would skip them.
        for claim in self.claims.values() {
            barred.ids.extend(&claim.message_ids);
            barred.keys.extend(&claim.key_hashes);
        }
        self.claims.retain(|lease, _| live.contains(lease));
        for claim in &seen.claims {
            self.peers.insert(claim.owner.clone(), Instant::now());
            barred.ids.extend(&claim.message_ids);
            barred.keys.extend(&claim.key_hashes);
            self.claims.insert(claim.lease, claim.clone());
        }
        let standing = || seen.leases.iter().map(|lease| lease.claim_id);
        self.known = standing().max().unwrap_or(0).max(self.known);
        self.gone = standing().min().map_or(self.known, |oldest| oldest.saturating_sub(1));
        barred
    }
}

/// Returns the ids that are known to be claimed, sorted.
#[must_use]
pub fn claimed_ids(own: &[Arc<Tenure>], foreign: &BTreeMap<ClaimLease, ForeignClaim>) -> Vec<u64> {
    let own = own.iter().flat_map(|tenure| &tenure.ids);
    let mut ids: Vec<u64> = own.chain(foreign.values().flat_map(|claim| &claim.message_ids)).copied().collect();
    ids.sort_unstable();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(claim_id: u64) -> Arc<Tenure> {
        Arc::new(Tenure::new(lease(claim_id), 0, vec![claim_id * 10], vec![claim_id], Instant::now()))
    }

    fn lease(claim_id: u64) -> ClaimLease {
        ClaimLease { claim_id, lease_token: 1 }
    }

    fn sorted(set: HashSet<u64>) -> Vec<u64> {
        let mut sorted = Vec::from_iter(set);
        sorted.sort_unstable();
        sorted
    }

    fn claim(claim_id: u64) -> ForeignClaim {
        ForeignClaim {
            lease: lease(claim_id),
            owner: "other".into(),
            message_ids: vec![claim_id * 10],
            key_hashes: vec![claim_id],
        }
    }

    fn barred(foreign: &mut Foreign, claim_ids: &[u64], claims: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let claims = claims.iter().copied().map(claim).collect();
        let seen = Seen { leases: claim_ids.iter().copied().map(lease).collect(), claims, ..Seen::default() };
        let barred = foreign.bar(&seen, &[]);
        (sorted(barred.ids), sorted(barred.keys))
    }

    #[test]
    fn ones_own_claims_bar_their_messages_and_where_rows_come_back_their_keys() {
        let is_there = own(1);
        let vanished = own(2);
        let settled = own(3);
        let abandoned = own(4);
        settled.settle(false);
        abandoned.settle(false);
        abandoned.abandon();
        let seen = Seen { leases: vec![lease(1), lease(4)], ..Seen::default() };
        let barred = Foreign::default().bar(&seen, &[is_there, vanished, settled, Arc::clone(&abandoned)]);
        assert_eq!((sorted(barred.ids), sorted(barred.keys)), (vec![10, 20, 40], vec![2, 4]));
        let barred = Foreign::default().bar(&Seen::default(), &[abandoned]);
        assert_eq!((sorted(barred.ids), sorted(barred.keys)), (vec![40], vec![4]));
    }

    #[test]
    fn a_claim_is_read_once_and_known_until_it_is_gone() {
        let mut foreign = Foreign::default();
        assert_eq!(barred(&mut foreign, &[1], &[1]), (vec![10], vec![1]));
        assert_eq!(barred(&mut foreign, &[1], &[]), (vec![10], vec![1]));
    }

    #[test]
    fn a_number_that_comes_again_is_another_claim() {
        let mut foreign = Foreign::default();
        barred(&mut foreign, &[5], &[5]);
        let again = ClaimLease { claim_id: 5, lease_token: 2 };
        let seen = |passed| Seen { leases: vec![passed], passed: vec![passed], ..Seen::default() };
        assert!(!foreign.misses(&seen(lease(5))) && foreign.misses(&seen(again)));
        let claims = vec![ForeignClaim { lease: again, ..claim(6) }];
        let both = foreign.bar(&Seen { leases: vec![again], claims, ..Seen::default() }, &[]);
        assert_eq!(sorted(both.ids), [50, 60], "nobody has looked for the rows of the first one");
        assert_eq!(barred(&mut foreign, &[], &[]), (vec![60], vec![6]));
    }

    #[test]
    fn claims_below_the_oldest_that_stands_are_gone() {
        let mut foreign = Foreign::default();
        let gone = [&[][..], &[5, 7], &[7, 8], &[], &[9]].map(|stand| {
            barred(&mut foreign, stand, &[]);
            (foreign.gone, foreign.known)
        });
        assert_eq!(gone, [(0, 0), (4, 7), (6, 8), (8, 8), (8, 9)]);
        foreign.forget_ids();
        assert_eq!((foreign.gone, foreign.known), (0, 0));
    }

    #[test]
    fn what_a_claim_that_is_gone_leaves_is_left_out_for_one_pass() {
        let mut foreign = Foreign::default();
        barred(&mut foreign, &[1], &[1]);
        assert_eq!(barred(&mut foreign, &[], &[]), (vec![10], vec![1]));
        assert_eq!(barred(&mut foreign, &[], &[]), (vec![], vec![]));
    }
}
