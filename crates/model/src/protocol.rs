//! What there is to check: messages, faults, and a flaw if a counterexample is wanted.

use crate::ids::Ids;

/// A bounded world.
#[derive(Debug, Clone)]
pub struct Protocol {
    /// The key of each message; ids begin at 1. Key 0 is none: such messages have no order.
    pub keys: Vec<u64>,
    /// Relay processes.
    pub relays: u8,
    /// How many faults strike: a lease that runs out (or a relay that is paused past it), a publish that fails, a lost reply, a crash, a
    /// transaction that rolls back.
    pub faults: u8,
    /// Most messages of a claim.
    pub claim_messages: usize,
    /// Most messages of a key in a claim: the others go behind with it.
    pub of_key: usize,
    /// Most claims of a relay.
    pub claims: usize,
    /// Most passes of a claimer between two moments without a claim.
    pub passes: u64,
    /// A protection that is switched off.
    pub flaw: Option<Flaw>,
}

impl Protocol {
    /// The key of a message.
    #[must_use]
    pub fn key(&self, id: u64) -> u64 {
        let at = usize::try_from(id).unwrap_or_default().saturating_sub(1);
        self.keys.get(at).copied().unwrap_or(0)
    }

    /// The largest id.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.keys.len() as u64
    }

    /// Their keys, without 0 and without repetition.
    pub(crate) fn keys_of(&self, messages: Ids) -> Vec<u64> {
        let mut keys: Vec<u64> = messages.iter().map(|id| self.key(id)).filter(|key| *key != 0).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Whether the two have an order.
    pub(crate) fn share_a_key(&self, id: u64, other: u64) -> bool {
        self.key(id) != 0 && self.key(id) == self.key(other)
    }

    /// The messages of the same key with a smaller id.
    pub(crate) fn before(&self, id: u64) -> Ids {
        (1..id).filter(|other| self.share_a_key(id, *other)).collect()
    }
}

/// A protection that can be switched off, to see that the checker finds what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A settlement is written whoever holds the claim.
    NoFence,
    /// A settlement is written if its relay holds any claim.
    FenceOnOwner,
    /// The gaps are looked at in a statement before that of the candidates.
    GapsFirst,
    /// The gaps are not looked at.
    NoGaps,
    /// The version is read after the candidates.
    LateVersion,
    /// The candidates are read row by row, each as it is then.
    LockingScan,
    /// A claim is made whatever the version.
    NoCompareAndSet,
    /// Rows go behind a claim that was not made.
    BehindNoClaim,
    /// Rows are read before they are committed.
    DirtyRead,
    /// The keys of other relays' claims are not left alone.
    KeysOfOthers,
    /// Messages that are in a claim are claimed again. Those with a key are guarded by it.
    ClaimedIds,
    /// Claims that stand are not looked at again.
    StandingClaimsUnseen,
    /// A claim that vanishes during the look leaves its keys free.
    VanishedKeysForgotten,
    /// A claim that vanishes during the look does not keep `low` and the next start below its messages.
    VanishedIdsForgotten,
    /// The messages of a claim that failed do not come back where their claim was lost.
    FailedDoNotReturn,
    /// The next look starts from a floor that rose during this one.
    FloorAfterLook,
    /// Rows that were put back below where the look started are left to the next one.
    PutBackUnseen,
    /// A message that waits does not hold back its key.
    RetryHoldsNothing,
    /// A message that failed lets the next one of its key go.
    FailureHoldsNothing,
    /// What was claimed before a failure was written is published after it.
    PassForgotten,
    /// Promotion leaves the version.
    PromoteKeepsVersion,
    /// Promotion leaves `low`.
    PromoteKeepsLow,
    /// A publish without an answer counts as sent.
    TimeOutIsSent,
    /// A lease is taken for renewed whoever holds the claim.
    RenewWithoutToken,
    /// A lease is taken for renewed when no reply came.
    UnansweredRenewalCounts,
    /// Claims are taken over before their lease has passed.
    TakeOverAtOnce,
}

/// What the last step did, where a property speaks of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Event {
    /// Nothing of interest.
    #[default]
    None,
    /// A message was delivered for the first time.
    Delivered,
    /// A message was delivered that had been before.
    Duplicate,
    /// A message was delivered after a message that was enqueued after it, of another key.
    Late,
    /// A message was delivered for the first time, after a later one of its key.
    OutOfOrder,
    /// A claim was taken over.
    TakenOver,
    /// A settlement came too late and wrote nothing.
    Fenced,
    /// A settlement came too late and wrote something.
    Unfenced,
    /// A message that waited was put back.
    Retried,
}
