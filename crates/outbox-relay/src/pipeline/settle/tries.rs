//! The next step of a group of claims after a try to settle it. Pure.

use outbox_core::store::{refusal::Refusal, settle::Way};

/// After this number of refusals caused by the call itself, a group is settled claim by claim. The same for lock waits:
/// a claim of which another session has locked a row is set aside, and does not hold up the others.
const MAX_REFUSALS: u32 = 3;
pub(super) const MAX_LOCK_WAITS: u32 = 2;

/// The failed tries to settle a group.
#[derive(Default)]
pub(super) struct Tries {
    failures: u32,
    /// Refusals caused by the call itself.
    refusals: u32,
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
        self.lock_waits += u32::from(refusal == Some(Refusal::Contention));
    }

    /// Ranges may meet rows that another transaction locks; a list of rows does not.
    pub(super) const fn way(&self) -> Way {
        if self.failures == 0 { Way::Ranges } else { Way::OneByOne }
    }

    pub(super) const fn next(&self, claims: usize, most_waits: u32) -> Next {
        let is_locked = self.lock_waits >= most_waits;
        match (claims, is_locked, self.refusals >= MAX_REFUSALS) {
            (0, ..) => Next::Done,
            (_, false, false) => Next::Again,
            (1, true, _) => Next::PutAside,
            (1, false, true) => Next::Abandon,
            _ => Next::Split,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_split_before_a_claim_is_put_aside_or_abandoned() {
        let [call, locked] = [Refusal::Call, Refusal::Contention].map(Some);
        for (claims, failures, next) in [
            (0, &[call, call, call][..], Next::Done),
            (2, &[None, None, None, None, call, call, locked], Next::Again),
            (2, &[call, None, call, call], Next::Split),
            (2, &[locked, locked], Next::Split),
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
