//! The state of a lane at the position of the stream: which rows are known, and which keys are held. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};

use outbox_core::store::claim::{
    Pending,
    read::Stored,
    tail::{Begun, ClaimKind},
};

use crate::binlog::{Held, RowChange, What};

/// A row that the owner of the tail takes.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// The row.
    pub row: Pending,
    /// Its contents, if the log has shown them.
    pub message: Option<Box<Stored>>,
    /// Whether it goes into the queue of its key, because an earlier message holds that.
    pub is_behind: bool,
    /// Whether its key has a queue, which is to be read on after it.
    pub has_queue: bool,
}

/// The lane as the owner of its tail knows it.
#[derive(Debug)]
pub(crate) struct LaneState {
    token: u64,
    phase: LanePhase,
    /// The pending rows, and those that were taken. A settled row stays until the log shows its removal.
    known: HashSet<u64>,
    held: HashMap<u64, BTreeSet<u64>>,
    /// The number of messages that hold a key.
    pub held_rows: usize,
    /// The largest id that may be taken, and the rows above.
    mark: u64,
    late: Vec<Arrival>,
    /// The largest id that was seen.
    pub seen: u64,
    /// The last of the own claims whose end the log has shown.
    pub shown: u64,
}

/// Whether the log has shown the tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LanePhase {
    /// Not yet: earlier events may be of rows that are settled.
    Before,
    /// It stands open.
    Open,
    /// It takes nothing more.
    Over,
}

impl LaneState {
    /// Begins with an open tail up to this mark, and what was there before it. Events must not be applied before.
    #[must_use]
    pub(crate) fn new(token: u64, mark: u64, begun: &Begun) -> (Self, Vec<Arrival>) {
        let mut lane = Self {
            token,
            phase: LanePhase::Before,
            known: HashSet::new(),
            held: HashMap::new(),
            held_rows: 0,
            mark,
            late: Vec::new(),
            seen: 0,
            shown: 0,
        };
        for &(id, key_hash) in &begun.held {
            lane.hold(Held { id, key_hash });
        }
        let arrivals = begun.pending.iter().filter_map(|row| lane.arrive(*row, None)).collect();
        (lane, arrivals)
    }

    /// Applies a transaction. Removals count before rows that it makes pending: a promotion takes the row from where it
    /// holds its key.
    pub(crate) fn apply(&mut self, changes: Vec<RowChange>) -> Vec<Arrival> {
        let mut pending = Vec::new();
        let mut ended = Vec::new();
        for RowChange { what, .. } in changes {
            match what {
                What::Claimed(lease, kind) if lease.lease_token == self.token => {
                    // A renewal shows the end of the claim, and the claim again.
                    ended.retain(|claim_id| *claim_id != lease.claim_id);
                    self.claimed(kind);
                }
                What::ClaimEnded(lease) if lease.lease_token == self.token => ended.push(lease.claim_id),
                _ if self.phase == LanePhase::Before => {}
                What::Pending(row, message) => pending.push((row, message)),
                What::Removed(id) => {
                    self.known.remove(&id);
                    self.late.retain(|late| late.row.id != id);
                }
                What::Holds(held) => self.hold(held),
                What::HoldsNoMore(held) => self.hold_no_more(held),
                What::Claimed(..) | What::ClaimEnded(..) => {}
            }
        }
        self.shown = ended.into_iter().fold(self.shown, u64::max);
        pending.into_iter().filter_map(|(row, message)| self.arrive(row, message)).collect()
    }

    fn claimed(&mut self, kind: ClaimKind) {
        self.phase = match kind {
            ClaimKind::Open if self.phase == LanePhase::Before => LanePhase::Open,
            ClaimKind::Open | ClaimKind::Forming => self.phase,
            ClaimKind::List | ClaimKind::Closed => LanePhase::Over,
        };
    }

    fn hold(&mut self, Held { id, key_hash }: Held) {
        self.held_rows += usize::from(self.held.entry(key_hash).or_default().insert(id));
    }

    fn hold_no_more(&mut self, Held { id, key_hash }: Held) {
        if let Some(ids) = self.held.get_mut(&key_hash) {
            self.held_rows -= usize::from(ids.remove(&id));
            if ids.is_empty() {
                self.held.remove(&key_hash);
            }
        }
    }

    fn arrive(&mut self, row: Pending, message: Option<Box<Stored>>) -> Option<Arrival> {
        self.seen = self.seen.max(row.id);
        if !self.known.insert(row.id) || self.phase == LanePhase::Over {
            return None;
        }
        let arrival = Arrival { row, message, is_behind: false, has_queue: false };
        if row.id > self.mark {
            self.late.push(arrival);
            return None;
        }
        Some(self.ordered(arrival))
    }

    fn ordered(&self, arrival: Arrival) -> Arrival {
        let first = self.held.get(&arrival.row.key_hash).and_then(BTreeSet::first);
        let first = first.filter(|_| arrival.row.key_hash != 0);
        Arrival { is_behind: first.is_some_and(|first| *first < arrival.row.id), has_queue: first.is_some(), ..arrival }
    }

    /// Raises the mark, and returns the rows up to it.
    pub(crate) fn raise(&mut self, mark: u64) -> Vec<Arrival> {
        self.mark = self.mark.max(mark);
        let (now, late) = std::mem::take(&mut self.late).into_iter().partition(|it| it.row.id <= self.mark);
        self.late = late;
        let now: Vec<Arrival> = now;
        if self.phase == LanePhase::Over { Vec::new() } else { now.into_iter().map(|it| self.ordered(it)).collect() }
    }

    /// Whether the log has shown the tail open, and not its end.
    #[must_use]
    pub(crate) fn is_open(&self) -> bool {
        self.phase == LanePhase::Open
    }

    /// Whether the log has shown the end of the tail.
    #[must_use]
    pub(crate) fn is_over(&self) -> bool {
        self.phase == LanePhase::Over
    }

    /// Whether a row is above the mark.
    #[must_use]
    pub(crate) fn is_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// Whether the row was seen.
    #[must_use]
    pub(crate) fn knows(&self, id: u64) -> bool {
        self.known.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::store::claim::lease::ClaimLease;

    use super::*;

    const TOKEN: u64 = 7;

    fn row(id: u64, key_hash: u64) -> Pending {
        Pending { id, key_hash, bytes: 1, attempts: 0, takeovers: 0 }
    }

    fn pending(id: u64, key_hash: u64) -> What {
        What::Pending(row(id, key_hash), None)
    }

    fn claimed(kind: ClaimKind) -> What {
        What::Claimed(ClaimLease { claim_id: 1, lease_token: TOKEN }, kind)
    }

    /// Applies a transaction. Returns the rows that are taken, each with whether it goes behind another one.
    fn apply(lane: &mut LaneState, changes: impl IntoIterator<Item = What>) -> Vec<(u64, bool)> {
        let changes = changes.into_iter().map(|what| RowChange { lane: 0, what }).collect();
        lane.apply(changes).iter().map(|arrival| (arrival.row.id, arrival.is_behind)).collect()
    }

    /// An open tail up to 100, with these rows before it.
    fn open(pending: &[(u64, u64)], held: &[(u64, u64)]) -> (LaneState, Vec<(u64, bool)>) {
        let begun = Begun {
            pending: pending.iter().map(|(id, key_hash)| row(*id, *key_hash)).collect(),
            held: held.to_vec(),
            ..Begun::default()
        };
        let (mut lane, arrivals) = LaneState::new(TOKEN, 100, &begun);
        assert!(apply(&mut lane, [claimed(ClaimKind::Open)]).is_empty() && lane.is_open());
        (lane, arrivals.iter().map(|arrival| (arrival.row.id, arrival.is_behind)).collect())
    }

    #[test]
    fn events_from_before_the_tail_are_left_out() {
        let (mut lane, _) = LaneState::new(TOKEN, 100, &Begun::default());
        assert!(apply(&mut lane, [claimed(ClaimKind::Forming), pending(1, 5)]).is_empty());
        assert!(apply(&mut lane, [claimed(ClaimKind::Open)]).is_empty());
        assert_eq!(apply(&mut lane, [pending(2, 5)]), [(2, false)]);
    }

    #[test]
    fn a_row_is_taken_once_until_the_log_shows_its_removal() {
        let (mut lane, first) = open(&[(1, 5)], &[]);
        assert_eq!(first, [(1, false)]);
        assert!(apply(&mut lane, [pending(1, 5)]).is_empty());
        assert!(lane.knows(1));
        assert!(apply(&mut lane, [What::Removed(1)]).is_empty());
        assert_eq!(apply(&mut lane, [pending(1, 5)]), [(1, false)]);
    }

    #[test]
    fn later_rows_of_a_held_key_go_behind_and_earlier_ones_go() {
        let (mut lane, first) = open(&[(9, 5), (10, 5), (11, 6)], &[(9, 5)]);
        assert_eq!(first, [(9, false), (10, true), (11, false)]);
        assert_eq!(apply(&mut lane, [pending(12, 5), pending(13, 0)]), [(12, true), (13, false)]);
        // The first of the queue is put back: what is still in the queue holds those behind it.
        let held = |id| Held { id, key_hash: 5 };
        apply(&mut lane, [What::Removed(10), What::Holds(held(10)), What::Removed(12), What::Holds(held(12))]);
        assert_eq!(lane.held_rows, 3);
        let back = [pending(9, 5), pending(10, 5), What::HoldsNoMore(held(9)), What::HoldsNoMore(held(10))];
        assert!(apply(&mut lane, [What::Removed(9)]).is_empty());
        assert_eq!(apply(&mut lane, back), [(9, false), (10, false)]);
        assert_eq!(apply(&mut lane, [pending(14, 5)]), [(14, true)]);
        assert_eq!(apply(&mut lane, [What::HoldsNoMore(held(12)), pending(15, 5)]), [(15, false)]);
        assert_eq!(lane.held_rows, 0);
    }

    #[test]
    fn a_row_whose_key_has_a_queue_says_so() {
        let (mut lane, _) = open(&[], &[(9, 5)]);
        let changes = [pending(3, 5), pending(12, 5), pending(13, 6)].map(|what| RowChange { lane: 0, what });
        let queues: Vec<bool> = lane.apply(changes.into()).iter().map(|arrival| arrival.has_queue).collect();
        assert_eq!(queues, [true, true, false]);
    }

    #[test]
    fn rows_above_the_mark_wait_until_it_is_raised() {
        let (mut lane, _) = open(&[], &[]);
        assert!(apply(&mut lane, [pending(101, 5), pending(102, 5)]).is_empty() && lane.is_late());
        let held = What::Holds(Held { id: 50, key_hash: 5 });
        apply(&mut lane, [held, What::Removed(102)]);
        let raised: Vec<_> = lane.raise(102).iter().map(|arrival| (arrival.row.id, arrival.is_behind)).collect();
        assert_eq!(raised, [(101, true)]);
    }

    /// The publisher lifts the block of a key once the log has shown the settlement. A renewal comes before that.
    #[test]
    fn a_claim_that_is_renewed_has_not_ended() {
        let (mut lane, _) = open(&[], &[]);
        let lease = |claim_id| ClaimLease { claim_id, lease_token: TOKEN };
        apply(&mut lane, [What::ClaimEnded(lease(1)), What::Claimed(lease(1), ClaimKind::Open)]);
        assert_eq!(lane.shown, 0);
        apply(&mut lane, [What::Claimed(lease(2), ClaimKind::Open), What::ClaimEnded(lease(1))]);
        assert_eq!(lane.shown, 1);
    }

    #[test]
    fn nothing_is_taken_after_the_end_of_the_tail() {
        for kind in [ClaimKind::Closed, ClaimKind::List] {
            let (mut lane, _) = open(&[], &[]);
            apply(&mut lane, [pending(101, 0)]);
            assert!(apply(&mut lane, [claimed(kind), pending(2, 0)]).is_empty() && lane.is_over());
            assert!(lane.raise(200).is_empty());
            assert!(apply(&mut lane, [claimed(ClaimKind::Open), pending(3, 0)]).is_empty());
        }
    }
}
