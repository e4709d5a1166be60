//! What a relay knows of its tail.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use outbox_core::store::claim::{
    lease::ClaimLease,
    tail::{FoundTail, TailClaim},
};

use super::REST;

/// A tail is written at least this often.
pub(super) const SILENCE: Duration = Duration::from_secs(1);
/// The rate is measured over at least this time.
const MEASURED: Duration = Duration::from_millis(200);
/// A tail without a row for this time ends.
pub(super) const IDLE: Duration = Duration::from_secs(10);
/// The mark is as many ids above those seen as come in this time, and at least [`FEWEST`]: a take-over may send the
/// rows below it again.
pub(super) const AHEAD: Duration = Duration::from_secs(2);
pub(super) const FEWEST: u64 = 100;

/// The state of a tail.
pub(super) struct TailState {
    pub(super) claim: TailClaim,
    /// When it was written last, as far as that was answered.
    pub(super) written: Instant,
    pub(super) taken: Instant,
    /// The parts that were taken, and those that are settled, lost or abandoned.
    pub(super) parts: u64,
    pub(super) closed: u64,
    /// The largest id that the stream has shown.
    pub(super) seen: u64,
    /// The largest id some time ago, with that time, and the ids that came in [`AHEAD`] before.
    pub(super) measured: (u64, Instant),
    pub(super) ahead: u64,
    pub(super) needs_mark: bool,
    pub(super) phase: TailPhase,
    /// Why it has ended, in one word.
    pub(super) why: Option<&'static str>,
    /// How long no tail follows.
    pub(super) rest: Duration,
    /// The settlements of the claim as it is now that were sent. Any of them may be executed.
    pub(super) sent: Vec<SentPart>,
    /// Parts whose settlement turned out later to be executed.
    pub(super) settled: Vec<ClaimLease>,
    /// Settlements that the log has not shown.
    pub(super) unshown: VecDeque<Unshown>,
    /// The last own claim whose end the log has shown.
    pub(super) shown: u64,
}

/// A settlement that was sent.
pub(super) struct SentPart {
    /// The mark of the claim that it leaves. No earlier one had it.
    pub(super) mark: Option<u64>,
    pub(super) at: Instant,
    pub(super) parts: Vec<ClaimLease>,
}

/// A settlement that was executed.
pub(super) struct Unshown {
    /// The claim that it has ended.
    pub(super) claim_id: u64,
    pub(super) at: Instant,
    pub(super) parts: Vec<ClaimLease>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TailPhase {
    /// It keeps others from claims.
    Forming,
    /// It is to be opened.
    Opening,
    Open,
    /// The claim takes nothing more. The rows in flight are a list, or will be one.
    Ending,
    /// The claim is gone from the database, or is left to its lease.
    Over,
}

impl TailState {
    /// Begins with a claim that was made just now.
    pub(super) fn new(claim: TailClaim) -> Self {
        let now = Instant::now();
        Self {
            claim,
            written: now,
            taken: now,
            parts: 0,
            closed: 0,
            seen: claim.mark,
            measured: (claim.mark, now),
            ahead: FEWEST,
            needs_mark: false,
            phase: TailPhase::Forming,
            why: None,
            rest: REST,
            sent: Vec::new(),
            settled: Vec::new(),
            unshown: VecDeque::new(),
            shown: 0,
        }
    }

    /// Measures how many ids come in [`AHEAD`].
    pub(super) fn measure(&mut self, now: Instant) {
        let (seen, at) = self.measured;
        let time = now.saturating_duration_since(at);
        if time >= MEASURED {
            let ids = u128::from(self.seen.saturating_sub(seen)) * AHEAD.as_micros() / time.as_micros();
            self.ahead = u64::try_from(ids).unwrap_or(u64::MAX).clamp(FEWEST, 1 << 20);
            self.measured = (self.seen, now);
        }
    }

    /// Ends it. The first reason counts.
    pub(super) fn end(&mut self, why: &'static str) {
        self.phase = self.phase.max(TailPhase::Ending);
        self.why.get_or_insert(why);
    }

    /// Takes over the state that the database has. Returns the settlement that was executed.
    pub(super) fn became(&mut self, found: &FoundTail) -> Option<SentPart> {
        let before = self.claim.lease;
        self.claim = found.claim.unwrap_or(self.claim);
        if found.claim.is_some_and(|claim| claim.lease == before) {
            return None;
        }
        let mark = found.claim.map(|claim| claim.mark);
        let mut sent = std::mem::take(&mut self.sent);
        let at = sent.iter().position(|sent| sent.mark == mark);
        // Other relays may have ended the successor. Those that leave none have the same parts.
        let is_one = || mark.is_none() && sent.windows(2).all(|pair| matches!(pair, [a, b] if a.parts == b.parts));
        let at = at.or_else(|| is_one().then_some(0)).filter(|at| found.is_settled && *at < sent.len());
        let executed = at.map(|at| sent.swap_remove(at));
        if let Some(SentPart { at, parts, .. }) = &executed {
            self.settled.extend(parts);
            if before.claim_id > self.shown && self.phase <= TailPhase::Open {
                // From the reply on: the commit may have taken long.
                let at = Instant::now();
                self.unshown.push_back(Unshown { claim_id: before.claim_id, at, parts: parts.clone() });
            }
            self.written = *at;
        }
        self.needs_mark = false;
        executed
    }

    /// Notes that the log has shown the end of this claim, and of those before. Returns the parts that were settled
    /// with them.
    pub(super) fn show(&mut self, claim_id: u64) -> Vec<ClaimLease> {
        self.shown = self.shown.max(claim_id);
        let mut parts = Vec::new();
        while let Some(settled) = self.unshown.pop_front_if(|settled| settled.claim_id <= self.shown) {
            parts.extend(settled.parts);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::store::claim::tail::ClaimKind;

    use super::*;

    fn lease(claim_id: u64) -> ClaimLease {
        ClaimLease { claim_id, lease_token: 1 }
    }

    fn claim(claim_id: u64, mark: u64) -> TailClaim {
        TailClaim { lease: lease(claim_id), kind: ClaimKind::Open, mark }
    }

    /// The parts that are settled if the claim is gone and this one is there instead.
    fn settled(successor: Option<TailClaim>) -> Vec<u64> {
        let mut state = TailState::new(claim(1, 100));
        for (mark, parts) in [(Some(101), &[1][..]), (Some(102), &[1, 2]), (None, &[1, 2, 3])] {
            let parts = parts.iter().copied().map(lease).collect();
            state.sent.push(SentPart { mark, at: Instant::now(), parts });
        }
        state.became(&FoundTail { is_settled: true, claim: successor });
        state.settled.iter().map(|part| part.claim_id).collect()
    }

    #[test]
    fn the_mark_of_the_successor_tells_which_settlement_was_executed() {
        assert_eq!(settled(Some(claim(2, 101))), [1]);
        assert_eq!(settled(Some(claim(2, 102))), [1, 2]);
        assert_eq!(settled(None), [1, 2, 3]);
        assert!(settled(Some(claim(1, 100))).is_empty(), "the claim is still there");
        assert!(settled(Some(claim(2, 99))).is_empty(), "another relay has made it");
    }

    #[test]
    fn a_settlement_counts_although_its_successor_is_gone() {
        let mut state = TailState::new(claim(1, 100));
        let sent = |mark| SentPart { mark: Some(mark), at: Instant::now(), parts: vec![lease(7)] };
        state.sent.extend([sent(101), sent(102)]);
        state.became(&FoundTail { is_settled: true, claim: None });
        assert_eq!(state.settled, [lease(7)]);
    }
}
