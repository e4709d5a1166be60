//! The next step of a group of claims after a try to settle it. Pure.

use outbox_core::store::{refusal::Refusal, settle::Way};

/// After this number of refusals caused by the call itself, or by its size, a group is settled claim by claim. The same
/// for lock waits: a claim of which another session has locked a row is set aside, and does not hold up the others.
const MAX_REFUSALS: u32 = 3;
pub(super) const MAX_LOCK_WAITS: u32 = 2;

/// The failed tries to settle a group.
#[derive(Default)]
pub(super) struct Tries {
    failures: u32,
    /// Refusals caused by the call itself.
    refusals: u32,
    /// Calls that the server ended, perhaps because they are too large.
    doubts: u32,
    lock_waits: u32,
}

/// The next step of a group after a try.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// None of its claims is left.
    Done,
    Again,
    /// Its claims are settled one by one.
    Split,
    /// Another session has locked a row of its claim: it is settled later.
    PutAside,
    /// The server refuses its claim.
    Abandon,
}

impl Tries {
    pub(super) fn note(&mut self, refusal: Option<Refusal>) {
        self.failures += 1;
        self.refusals += u32::from(refusal == Some(Refusal::Call));
        self.doubts += u32::from(refusal == Some(Refusal::Doubtful));
        self.lock_waits += u32::from(refusal == Some(Refusal::Contention));
    }

    /// Ranges may meet rows that another transaction locks; a list of rows does not.
    pub(super) const fn way(&self) -> Way {
        if self.failures == 0 { Way::Ranges } else { Way::OneByOne }
    }

    pub(super) const fn next(&self, claims: usize, most_waits: u32) -> Next {
        let is_locked = self.lock_waits >= most_waits;
        let is_refused = self.refusals >= MAX_REFUSALS;
        match claims {
            0 => Next::Done,
            1 if is_locked => Next::PutAside,
            1 if is_refused => Next::Abandon,
            2.. if is_locked || is_refused || self.doubts >= MAX_REFUSALS => Next::Split,
            _ => Next::Again,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_split_before_a_claim_is_put_aside_or_abandoned() {
        let [call, doubt, locked] = [Refusal::Call, Refusal::Doubtful, Refusal::Contention].map(Some);
        for (claims, failures, next) in [
            (0, &[call, call, call][..], Next::Done),
            (2, &[None, None, None, None, call, call, locked], Next::Again),
            (2, &[call, None, call, call], Next::Split),
            (2, &[locked, locked], Next::Split),
            (2, &[doubt, doubt, doubt], Next::Split),
            (1, &[doubt, doubt, doubt, doubt], Next::Again),
            (1, &[locked, locked], Next::PutAside),
            (1, &[call, call, call, locked, locked], Next::PutAside),
            (1, &[call, locked, call, call], Next::Abandon),
        ] {
            let mut tries = Tries::default();
            for refusal in failures {
                tries.note(*refusal);
            }
            assert_eq!(tries.next(claims, MAX_LOCK_WAITS), next, "{claims} claims after {failures:?}");
        }
    }
}
