//! Parts of a tail that are settled together.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use outbox_core::store::{lease::ClaimLease, settle::Settlement};

use crate::{
    pipeline::settle::{Finished, MAX_PARTS, MAX_TEXT},
    state::leases::Tenure,
};

/// The parts in flight, in their order, that may not be settled with the other finished ones. Within a settlement only ids tell the
/// order of a key.
pub(super) fn behind(parts: &[Arc<Tenure>], finished: &HashMap<ClaimLease, usize>) -> HashSet<ClaimLease> {
    let (mut behind, mut last_ids, mut text) = (HashSet::new(), HashMap::<u64, u64>::new(), 0);
    for (at, part) in parts.iter().enumerate() {
        let first = part.ids.first().copied().unwrap_or(0);
        let follows = part.keys.iter().all(|key| last_ids.get(key).is_none_or(|last| *last < first));
        let size = finished.get(&part.lease).copied();
        let fits = at < behind.len() + MAX_PARTS && text < MAX_TEXT;
        let last = match size {
            Some(size) if follows && fits => {
                text += size;
                part.ids.last().copied().unwrap_or(0)
            }
            _ => {
                behind.insert(part.lease);
                u64::MAX
            }
        };
        for key in &part.keys {
            last_ids.entry(*key).and_modify(|id| *id = last.max(*id)).or_insert(last);
        }
    }
    behind
}

/// Their outcomes.
pub(super) fn merged(group: &[Finished]) -> Settlement {
    let mut all = Settlement::default();
    for Settlement { sent, delayed, dead } in group.iter().map(Finished::settlement) {
        all.sent.extend_from_slice(sent);
        all.delayed.extend_from_slice(delayed);
        all.dead.extend_from_slice(dead);
    }
    all.sent.sort_unstable_by_key(|(id, _)| *id);
    all
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// The numbers of the parts that wait, of these finished ones with ids and keys.
    fn waiting(parts: &[(&[u64], &[u64])], finished: &[u64]) -> Vec<u64> {
        let lease = |claim_id| ClaimLease { claim_id, lease_token: 1 };
        let part = |(number, (ids, keys)): (u64, &(&[u64], &[u64]))| {
            Arc::new(Tenure::new(lease(number), 0, ids.to_vec(), keys.to_vec(), Instant::now()))
        };
        let parts: Vec<_> = (1..).zip(parts).map(part).collect();
        let finished: HashMap<_, _> = finished.iter().map(|number| (lease(*number), 0)).collect();
        let behind = behind(&parts, &finished);
        let mut waiting: Vec<u64> =
            behind.iter().filter(|it| finished.contains_key(it)).map(|it| it.claim_id).collect();
        waiting.sort_unstable();
        waiting
    }

    #[test]
    fn a_part_waits_for_earlier_ones_of_its_keys() {
        let parts: [(&[u64], &[u64]); 4] = [(&[1, 2], &[7, 8]), (&[3], &[8]), (&[4], &[9]), (&[5], &[8, 9])];
        assert_eq!(waiting(&parts, &[2, 3, 4]), [2, 4], "the first one is not finished");
        assert!(waiting(&parts, &[1, 2, 3, 4]).is_empty());
        assert!(waiting(&parts, &[1, 3]).is_empty());
    }

    #[test]
    fn of_a_late_commit_only_another_settlement_tells_the_order() {
        let parts: [(&[u64], &[u64]); 3] = [(&[5], &[7]), (&[4], &[7]), (&[3], &[])];
        assert_eq!(waiting(&parts, &[1, 2, 3]), [2]);
        assert!(waiting(&parts[1..], &[1, 2]).is_empty());
    }

    #[test]
    fn a_settlement_takes_so_many_parts() {
        let ids: Vec<[u64; 1]> = (1..=MAX_PARTS as u64 + 2).map(|id| [id]).collect();
        let parts: Vec<(&[u64], &[u64])> = ids.iter().map(|id| (&id[..], &[][..])).collect();
        let finished: Vec<u64> = ids.iter().flatten().copied().collect();
        assert_eq!(waiting(&parts, &finished).len(), 2);
        assert_eq!(waiting(&parts, &finished[2..]).len(), 0);
    }
}
