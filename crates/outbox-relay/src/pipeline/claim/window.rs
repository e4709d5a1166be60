//! Selects the rows of a claim: pure decisions on the result of a look.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::RangeInclusive,
};

use outbox_core::store::claim::{Pending, Seen};

use crate::state::queues::AT_ONCE;

/// A message that was taken over this many times may be the one that kills relays. It is claimed alone. One take-over
/// earlier it is claimed with few others, so that few become suspects with it. Attempts are no sign, because an outage
/// costs many messages some. If each of those had a claim of its own, they would keep all others waiting.
pub const SUSPECT_TAKEOVERS: u8 = 3;
/// Divides the size of a claim to get that of a claim with few others.
const FEW: usize = 32;
/// With more gaps than this, one range covers all of them and the claimed ids between.
const MAX_GAPS: usize = 64;

/// The ids to search for unclaimed rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gaps {
    /// The gaps between claimed ids, from the start of the look on.
    pub below: Vec<RangeInclusive<u64>>,
    /// The largest claimed id, or the id before the start if that is larger: fresh rows are above.
    pub above: u64,
    /// Most claimed rows inside `below`.
    pub claimed_within: usize,
}

/// Returns the gaps between claimed ids (sorted), from `start` on.
#[must_use]
pub fn gaps(start: u64, claimed: &[u64]) -> Gaps {
    let mut below = Vec::new();
    let mut next = start;
    for &id in claimed {
        if id > next {
            below.push(next..=id - 1);
        }
        next = next.max(id + 1);
    }
    let above = next.saturating_sub(1);
    if below.len() > MAX_GAPS {
        return Gaps { below: vec![start..=above], above, claimed_within: claimed.len() };
    }
    Gaps { below, above, claimed_within: 0 }
}

/// The start of a look: no pending row has a smaller id, except a row committed later than the floor allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Start(u64);

impl Start {
    /// Returns the smallest id to look at.
    #[must_use]
    pub fn id(self) -> u64 {
        self.0
    }

    /// Returns the start of the next look. `floor` must be read *before* the last look: no look may have seen a row
    /// committed just before the floor rose above it. `low` is the lane's. `lowest` is the smallest id of a row that
    /// was seen or is claimed.
    #[must_use]
    pub fn after(floor: u64, low: u64, lowest: Option<u64>) -> Self {
        Self(floor.min(low).min(lowest.unwrap_or(u64::MAX)))
    }

    /// Whether a row was put back below the start, by the lane's new `low`. The seen rows must not be claimed before
    /// that row.
    #[must_use]
    pub fn is_passed(self, low: u64) -> bool {
        low < self.0
    }
}

/// The limits of a pass.
#[derive(Debug)]
pub struct Limits {
    /// Most messages.
    pub messages: usize,
    /// Most messages of a claim. If that is fewer, the pass makes several claims, and no two of them share a key.
    pub of_claim: usize,
    /// Most bytes; a single message may have more.
    pub bytes: u64,
    /// This many rows in the gaps mean that there may be more. Then no row above the gaps may be claimed.
    pub below: usize,
    /// Most pending rows of a key.
    pub of_key: usize,
}

impl Limits {
    /// Returns the limit of pending rows for this key.
    fn of(&self, key: u64, barred: &Barred) -> usize {
        if barred.crowded.contains(&key) { 1 } else { self.of_key }
    }

    /// Returns the most messages of a pass that claims this row.
    fn with(&self, row: &Pending) -> usize {
        match row.takeovers {
            SUSPECT_TAKEOVERS.. => 1,
            takeovers if takeovers + 1 == SUSPECT_TAKEOVERS => self.messages.div_ceil(FEW),
            _ => self.messages,
        }
    }
}

/// Rows and keys that must not be claimed.
#[derive(Debug, Default)]
pub struct Barred {
    /// Ids in live claims.
    pub ids: HashSet<u64>,
    /// Keys of other relays' live claims, and of claims that vanished since the last look. Rows of vanished claims may
    /// be pending again outside this look. Also all keys of a worker's own claims.
    pub keys: HashSet<u64>,
    /// Keys held back, each with the smallest id that holds it back.
    pub held: HashMap<u64, u64>,
    /// Keys with the most messages in flight that they may have: a claim takes at most one message of each.
    pub crowded: HashSet<u64>,
}

/// The rows to claim.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The rows of each claim, by id.
    pub claims: Vec<Vec<Pending>>,
    /// Rows that move into the queue of their key: behind a waiting row, or behind the most rows of a key that may be
    /// pending.
    pub behind: Vec<Pending>,
    /// Keys of the claims whose queue must be read on, because few of their rows are left.
    pub queued: Vec<u64>,
    /// The smallest id of a seen row; after [`Self::end`] the lane's new `low`.
    pub low: Option<u64>,
}

impl Selection {
    /// Ends a look: sets the lane's new `low`, and returns the start of the next look. `floor` as in [`Start::after`].
    /// `left_out` is the start of this look if it left out rows. They are not below the lane's `low`, and not below
    /// this start either, but for rows that were committed later than the floor allowed.
    #[must_use]
    pub fn end(&mut self, seen: &Seen, barred: &Barred, floor: u64, left_out: Option<Start>) -> Start {
        let claimed = barred.ids.iter().copied().min();
        self.low = self.low.into_iter().chain(claimed).chain(left_out.map(|_| seen.low)).min();
        let next = Start::after(floor, seen.low, self.low);
        left_out.map_or(next, |start| next.min(start))
    }
}

/// Selects the rows of the claims: the lowest ids first, and no row that an earlier row of its key holds back.
#[must_use]
pub fn select(seen: &Seen, barred: &Barred, limits: &Limits) -> Selection {
    let cut = seen.below.len() >= limits.below;
    let fresh = if cut { &[] } else { seen.fresh.as_slice() };
    let mut selection = Selection::default();
    let mut bytes = 0;
    let mut messages = limits.messages;
    let mut is_full = false;
    let mut keys = KeyRooms::default();
    let mut divided = Divided::new(limits);
    for row in seen.below.iter().chain(fresh).filter(|row| !barred.ids.contains(&row.id)) {
        selection.low = selection.low.or(Some(row.id));
        let is_held = row.key_hash != 0 && barred.held.get(&row.key_hash).is_some_and(|head| *head < row.id);
        let is_free = row.key_hash == 0 || !barred.keys.contains(&row.key_hash);
        if is_held || is_free && !keys.have_room(row, barred, limits) {
            selection.behind.push(*row);
        } else if is_free && !is_full {
            let Some(claim) = divided.claim_of(row) else { continue };
            bytes += u64::from(row.bytes);
            messages = messages.min(limits.with(row));
            is_full = divided.rows > 0 && (divided.rows >= messages || bytes > limits.bytes);
            if !is_full {
                divided.put(claim, *row);
            }
        }
    }
    selection.queued = keys.queued(divided.claims.iter().flatten(), barred, limits);
    selection.claims = divided.claims;
    selection
}

/// The rows of a pass, divided among its claims.
struct Divided {
    claims: Vec<Vec<Pending>>,
    rows: usize,
    of_claim: usize,
    most: usize,
    /// The claim of each key, if there are several claims.
    of_key: HashMap<u64, usize>,
}

impl Divided {
    fn new(limits: &Limits) -> Self {
        let of_claim = limits.of_claim;
        let most = limits.messages / limits.of_claim.max(1);
        Self { claims: Vec::new(), rows: 0, of_claim, most: most.max(1), of_key: HashMap::new() }
    }

    /// Returns the claim that has room for this row: that of its key, or the last one, or a new one.
    fn claim_of(&self, row: &Pending) -> Option<usize> {
        let has_room = |claim: &usize| self.claims.get(*claim).is_none_or(|rows| rows.len() < self.of_claim);
        if let Some(claim) = self.of_key.get(&row.key_hash) {
            return Some(*claim).filter(has_room);
        }
        let last = self.claims.len().saturating_sub(1);
        Some(if has_room(&last) { last } else { last + 1 }).filter(|claim| *claim < self.most)
    }

    fn put(&mut self, claim: usize, row: Pending) {
        if claim == self.claims.len() {
            self.claims.push(Vec::new());
        }
        if let Some(rows) = self.claims.get_mut(claim) {
            rows.push(row);
            self.rows += 1;
        }
        if row.key_hash != 0 && self.most > 1 {
            self.of_key.insert(row.key_hash, claim);
        }
    }
}

/// The number of rows of each seen key that are not held back. Counted only if keys are limited or a key waits.
#[derive(Default)]
struct KeyRooms(HashMap<u64, usize>);

impl KeyRooms {
    /// Counts a row, and returns whether it is among those of its key that may stay pending.
    fn have_room(&mut self, row: &Pending, barred: &Barred, limits: &Limits) -> bool {
        if row.key_hash == 0 || limits.of_key == usize::MAX && barred.held.is_empty() {
            return true;
        }
        let rows = self.0.entry(row.key_hash).or_default();
        *rows += 1;
        *rows <= limits.of(row.key_hash, barred)
    }

    /// Returns the keys of these claimed rows that have a queue, and few rows that are not claimed.
    fn queued<'a>(&self, take: impl Iterator<Item = &'a Pending>, barred: &Barred, limits: &Limits) -> Vec<u64> {
        let mut taken = BTreeMap::new();
        for row in take {
            let rows = self.0.get(&row.key_hash).copied().unwrap_or(0);
            if barred.held.contains_key(&row.key_hash) || rows > limits.of(row.key_hash, barred) {
                *taken.entry(row.key_hash).or_insert(0) += 1;
            }
        }
        let few = limits.of_key.min(AT_ONCE) / 2;
        let rows = |key: &u64| self.0.get(key).map_or(0, |rows| limits.of(*key, barred).min(*rows));
        taken.retain(|key, taken| rows(key) < *taken + few);
        taken.into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { messages: 10, of_claim: 10, bytes: 1000, below: 100, of_key: usize::MAX };

    fn row(id: u64, key_hash: u64) -> Pending {
        Pending { id, key_hash, bytes: 10, attempts: 0, takeovers: 0 }
    }

    fn ids(selection: &Selection) -> Vec<u64> {
        selection.claims.iter().flatten().map(|row| row.id).collect()
    }

    fn behind(selection: &Selection) -> Vec<u64> {
        selection.behind.iter().map(|row| row.id).collect()
    }

    #[test]
    fn gaps_lie_between_claimed_ids_and_above_is_the_largest() {
        let found = gaps(3, &[5, 6, 9]);
        assert_eq!(found, Gaps { below: vec![3..=4, 7..=8], above: 9, claimed_within: 0 });
        assert_eq!(gaps(7, &[]), Gaps { below: vec![], above: 6, claimed_within: 0 });
        assert_eq!(gaps(7, &[5, 7]).below, vec![]);
        assert_eq!(gaps(0, &[0, 1]), Gaps { below: vec![], above: 1, claimed_within: 0 });
    }

    #[test]
    fn a_look_starts_at_the_floor_before_the_last_one_or_at_what_that_saw_or_at_what_was_put_back() {
        assert_eq!(Start::default().id(), 0);
        let starts = [(7, 9, None), (7, 9, Some(5)), (7, 4, Some(5))];
        assert_eq!(starts.map(|(floor, low, lowest)| Start::after(floor, low, lowest).id()), [7, 5, 4]);
    }

    #[test]
    fn after_a_look_that_left_out_rows_low_does_not_rise_and_the_next_look_starts_no_later() {
        let seen = Seen { low: 5, ..Seen::default() };
        let barred = Barred { ids: [8].into(), ..Barred::default() };
        let ended = |leaves_out: bool, row| {
            let mut selection = Selection { low: row, ..Selection::default() };
            let start = selection.end(&seen, &barred, 9, leaves_out.then_some(Start(3)));
            (selection.low, start.id())
        };
        assert_eq!([ended(false, Some(7)), ended(false, None)], [(Some(7), 5), (Some(8), 5)]);
        assert_eq!([ended(true, Some(7)), ended(true, Some(4))], [(Some(5), 3), (Some(4), 3)]);
        assert_eq!(ended(true, Some(2)), (Some(2), 2));
    }

    #[test]
    fn a_row_that_was_put_back_below_the_start_is_noticed_by_low() {
        let start = Start::after(7, 9, None);
        assert_eq!([6, 7, 9].map(|low| start.is_passed(low)), [true, false, false]);
    }

    #[test]
    fn many_gaps_become_one_range() {
        let claimed: Vec<u64> = (0..200).map(|i| i * 2 + 1).collect();
        assert_eq!(gaps(0, &claimed), Gaps { below: vec![0..=399], above: 399, claimed_within: 200 });
    }

    #[test]
    fn rows_below_come_first_and_claimed_ids_are_left_out() {
        let seen = Seen { below: vec![row(3, 0)], fresh: vec![row(8, 0), row(9, 0)], ..Seen::default() };
        let barred = Barred { ids: [8].into(), ..Barred::default() };
        let selection = select(&seen, &barred, &LIMITS);
        assert_eq!((ids(&selection), selection.low), (vec![3, 9], Some(3)));
    }

    #[test]
    fn nothing_above_is_claimed_while_there_may_be_more_below() {
        let seen = Seen { below: vec![row(3, 7), row(4, 7)], fresh: vec![row(9, 7)], ..Seen::default() };
        assert_eq!(ids(&select(&seen, &Barred::default(), &Limits { below: 2, ..LIMITS })), [3, 4]);
    }

    #[test]
    fn a_key_of_another_relay_is_left_and_keeps_low_down() {
        let seen = Seen { fresh: vec![row(1, 7), row(2, 8), row(3, 7)], ..Seen::default() };
        let barred = Barred { keys: [7].into(), ..Barred::default() };
        let selection = select(&seen, &barred, &LIMITS);
        assert_eq!((ids(&selection), selection.low), (vec![2], Some(1)));
    }

    #[test]
    fn a_row_behind_a_waiting_one_is_deferred_but_the_waiting_ones_predecessors_are_not() {
        let seen = Seen { fresh: vec![row(1, 7), row(5, 7), row(6, 8)], ..Seen::default() };
        let barred = Barred { held: [(7, 3)].into(), ..Barred::default() };
        let selection = select(&seen, &barred, &LIMITS);
        assert_eq!((ids(&selection), behind(&selection), selection.queued), (vec![1, 6], vec![5], vec![7]));
    }

    #[test]
    fn what_is_more_of_a_key_than_a_claim_may_have_goes_behind_and_other_keys_go_on() {
        let fresh =
            vec![row(1, 7), row(2, 7), row(3, 8), row(4, 7), row(5, 0), row(6, 0), row(7, 0), row(8, 9), row(9, 9)];
        let seen = Seen { fresh, ..Seen::default() };
        let barred = Barred { crowded: [9].into(), ..Barred::default() };
        let selection = select(&seen, &barred, &Limits { of_key: 2, ..LIMITS });
        assert_eq!(ids(&selection), [1, 2, 3, 5, 6, 7, 8], "at least one of each key");
        assert_eq!((behind(&selection), selection.queued), (vec![4, 9], vec![7, 9]));
    }

    #[test]
    fn a_queue_is_not_read_on_while_there_are_rows_of_its_key_to_be_claimed() {
        let held = Barred { held: [(7, 1000)].into(), ..Barred::default() };
        let queued = |rows| {
            let seen = Seen { fresh: (1..=rows).map(|id| row(id, 7)).collect(), ..Seen::default() };
            select(&seen, &held, &LIMITS).queued
        };
        assert_eq!((queued(10), queued(100)), (vec![7], vec![]));
    }

    #[test]
    fn limits_of_count_and_bytes_hold_but_one_message_is_always_taken() {
        let seen = Seen { fresh: (1..=20).map(|id| row(id, 0)).collect(), ..Seen::default() };
        assert_eq!(ids(&select(&seen, &Barred::default(), &LIMITS)).len(), 10);
        assert_eq!(ids(&select(&seen, &Barred::default(), &Limits { bytes: 35, ..LIMITS })).len(), 3);
        assert_eq!(ids(&select(&seen, &Barred::default(), &Limits { bytes: 1, ..LIMITS })), [1]);
    }

    #[test]
    fn a_suspect_is_claimed_alone() {
        let suspect = |id| Pending { takeovers: SUSPECT_TAKEOVERS, ..row(id, 0) };
        let seen = Seen { fresh: vec![row(1, 0), suspect(2), row(3, 0)], ..Seen::default() };
        assert_eq!(ids(&select(&seen, &Barred::default(), &LIMITS)), [1]);
        let seen = Seen { fresh: vec![suspect(2), row(3, 0)], ..Seen::default() };
        assert_eq!(ids(&select(&seen, &Barred::default(), &LIMITS)), [2]);
    }

    #[test]
    fn what_becomes_suspect_at_the_next_take_over_is_claimed_with_few_others() {
        let seen =
            Seen { fresh: (1..=200).map(|id| Pending { takeovers: 2, ..row(id, 0) }).collect(), ..Seen::default() };
        let limits = [1000, 100, 10].map(|messages| Limits { messages, of_claim: messages, bytes: 10_000, ..LIMITS });
        assert_eq!(limits.map(|limits| ids(&select(&seen, &Barred::default(), &limits)).len()), [32, 4, 1]);
    }

    #[test]
    fn the_rows_of_a_pass_are_divided_and_no_two_claims_share_a_key() {
        let divided = |messages, of_claim| {
            let fresh = vec![row(1, 7), row(2, 8), row(3, 7), row(4, 0), row(5, 7), row(6, 9), row(7, 0), row(8, 8)];
            let seen = Seen { fresh, ..Seen::default() };
            let selection = select(&seen, &Barred::default(), &Limits { messages, of_claim, ..LIMITS });
            selection.claims.iter().map(|claim| claim.iter().map(|row| row.id).collect()).collect::<Vec<Vec<_>>>()
        };
        assert_eq!(divided(3, 1), [[1], [2], [4]], "one message of a key");
        assert_eq!(divided(8, 2), [vec![1, 2], vec![4, 6], vec![7]], "the rest of a key waits");
        assert_eq!(divided(9, 3), [vec![1, 2, 3], vec![4, 6, 7]]);
        assert_eq!(divided(3, 2), [vec![1, 2]], "a claim takes all of its places");
        assert_eq!(divided(4, 9), [[1, 2, 3, 4]]);
        assert_eq!(divided(8, 8), [[1, 2, 3, 4, 5, 6, 7, 8]]);
    }

    #[test]
    fn what_has_failed_often_is_claimed_together_with_others() {
        let failed = |id| Pending { attempts: u16::MAX, ..row(id, 0) };
        let seen = Seen { fresh: vec![failed(1), failed(2), row(3, 0)], ..Seen::default() };
        assert_eq!(ids(&select(&seen, &Barred::default(), &LIMITS)), [1, 2, 3]);
    }
}
