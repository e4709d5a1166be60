//! Parts of a tail that are settled together.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use outbox_core::store::{claim::lease::ClaimLease, settle::Settlement};

use crate::{
    pipeline::settle::{Finished, MAX_PARTS, MAX_TEXT},
    state::leases::Tenure,
};

/// The parts in flight, in their order, that may not be settled with the other finished ones. Within a settlement only
/// ids tell the order of a key.
pub(super) fn behind(parts: &[Arc<Tenure>], finished: &HashMap<ClaimLease, usize>) -> HashSet<ClaimLease> {
    let mut behind = HashSet::new();
    let mut last_ids = HashMap::<u64, u64>::new();
    let mut text = 0;
    for (at, part) in parts.iter().enumerate() {
        let follows = part.spans.iter().all(|(key, (first, _))| last_ids.get(key).is_none_or(|last| last < first));
        let size = finished.get(&part.lease).copied();
        let fits = at < behind.len() + MAX_PARTS && text < MAX_TEXT;
        let size = size.filter(|_| follows && fits);
        text += size.unwrap_or(0);
        if size.is_none() {
            behind.insert(part.lease);
        }
        for (key, (_, last)) in &part.spans {
            let last = if size.is_some() { *last } else { u64::MAX };
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

    use outbox_core::store::claim::Pending;
    use parking_lot::Mutex;

    use super::*;

    /// The numbers of the parts that wait, of these finished ones with ids and their keys.
    fn waiting(parts: &[&[(u64, u64)]], finished: &[u64]) -> Vec<u64> {
        let lease = |claim_id| ClaimLease { claim_id, lease_token: 1 };
        let until = Arc::new(Mutex::new(Instant::now()));
        let row =
            |(id, key_hash): &(u64, u64)| Pending { id: *id, key_hash: *key_hash, bytes: 1, attempts: 0, takeovers: 0 };
        let part = |(number, rows): (u64, &&[(u64, u64)])| {
            let rows: Vec<Pending> = rows.iter().map(row).collect();
            Arc::new(Tenure::part(lease(number), 1, 0, &rows, &until))
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
        let parts: [&[(u64, u64)]; 4] = [&[(1, 7), (2, 8)], &[(3, 8)], &[(4, 9)], &[(5, 8), (6, 9)]];
        assert_eq!(waiting(&parts, &[2, 3, 4]), [2, 4], "the first one is not finished");
        assert!(waiting(&parts, &[1, 2, 3, 4]).is_empty());
        assert!(waiting(&parts, &[1, 3]).is_empty());
    }

    #[test]
    fn of_a_late_commit_only_another_settlement_tells_the_order() {
        let parts: [&[(u64, u64)]; 3] = [&[(5, 7)], &[(4, 7)], &[]];
        assert_eq!(waiting(&parts, &[1, 2, 3]), [2]);
        assert!(waiting(&parts[1..], &[1, 2]).is_empty());
    }

    #[test]
    fn the_order_of_other_keys_holds_no_part_back() {
        assert!(waiting(&[&[(5, 7), (9, 8)], &[(7, 7)]], &[1, 2]).is_empty());
        assert_eq!(waiting(&[&[(5, 7), (9, 8)], &[(7, 7), (6, 8)]], &[1, 2]), [2]);
    }

    #[test]
    fn a_settlement_takes_so_many_parts() {
        let parts: Vec<&[(u64, u64)]> = vec![&[]; MAX_PARTS + 2];
        let finished: Vec<u64> = (1..=parts.len() as u64).collect();
        assert_eq!(waiting(&parts, &finished).len(), 2);
        assert_eq!(waiting(&parts, &finished[2..]).len(), 0);
    }
}
