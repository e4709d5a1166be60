//! The input of a check: messages, faults, and a flaw if a counterexample is wanted.

use crate::ids::Ids;

/// A bounded world.
#[derive(Debug, Clone)]
pub struct Protocol {
    /// The key of each message; ids begin at 1. Messages with key 0 have no key and no order.
    pub keys: Vec<u64>,
    /// The number of relay processes.
    pub relays: u8,
    /// The number of faults: a lease that runs out (or a relay paused past it), a publish that fails, a lost reply, a
    /// crash, a transaction that rolls back.
    pub faults: u8,
    /// The largest number of messages of a claim.
    pub claim_messages: usize,
    /// The largest number of messages of a key in a claim: the others move behind with it.
    pub of_key: usize,
    /// Whether the processes are workers: each message of a pass has a claim of its own, and no two claims share a key.
    pub workers: bool,
    /// Whether a look may leave out the messages of key 1.
    pub looks_past: bool,
    /// The largest number of claims of a relay that looks.
    pub claims: usize,
    /// The largest number of passes of a claimer between two moments without a claim.
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

    /// The distinct keys of these messages, without 0.
    pub(crate) fn keys_of(&self, messages: Ids) -> Vec<u64> {
        let mut keys: Vec<u64> = messages.iter().map(|id| self.key(id)).filter(|key| *key != 0).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Whether the two messages have an order.
    pub(crate) fn share_a_key(&self, id: u64, other: u64) -> bool {
        self.key(id) != 0 && self.key(id) == self.key(other)
    }

    /// The messages of the same key with a smaller id.
    pub(crate) fn before(&self, id: u64) -> Ids {
        (1..id).filter(|other| self.share_a_key(id, *other)).collect()
    }
}

/// A protection that can be switched off, to prove that the checker finds what it prevents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A settlement is written whichever relay holds the claim.
    NoFence,
    /// A settlement is written if its relay holds any claim.
    FenceOnOwner,
    /// The gaps are read in a statement before that of the candidates.
    GapsFirst,
    /// The gaps are not read.
    NoGaps,
    /// The version is read after the candidates.
    LateVersion,
    /// The candidates are read row by row, each as it is at that moment.
    LockingScan,
    /// A claim is made whatever the version is.
    NoCompareAndSet,
    /// Rows move behind a claim that was not made.
    BehindNoClaim,
    /// Rows are read before they are committed.
    DirtyRead,
    /// Keys of other relays' claims are claimed too.
    KeysOfOthers,
    /// Keys of a worker's own claims are claimed too.
    KeysOfOwn,
    /// Two claims of a worker's pass share a key.
    DividedById,
    /// Messages that are in a claim are claimed again. Those with a key are protected by it.
    ClaimedIds,
    /// Live claims are not read again.
    StandingClaimsUnseen,
    /// A claim that is deleted during the look leaves its keys free.
    VanishedKeysForgotten,
    /// A claim that is deleted during the look does not keep `low` and the next start below its messages.
    VanishedIdsForgotten,
    /// Failed messages do not return if their claim was lost.
    FailedDoNotReturn,
    /// The next look starts from a floor that rose during this one.
    FloorAfterLook,
    /// A look that left out rows lets the next one start above them.
    LeftOutForgotten,
    /// Rows that were put back below the start of a look are left to the next one.
    PutBackUnseen,
    /// A message that waits does not hold back its key.
    RetryHoldsNothing,
    /// A failed message does not hold back the next one of its key.
    FailureHoldsNothing,
    /// Messages claimed before a failure was written are published after it.
    PassForgotten,
    /// A promotion does not change the version.
    PromoteKeepsVersion,
    /// A promotion does not change `low`.
    PromoteKeepsLow,
    /// A publish without an answer counts as sent.
    TimeOutIsSent,
    /// A lease counts as renewed whichever relay holds the claim.
    RenewWithoutToken,
    /// A lease counts as renewed when no reply came.
    UnansweredRenewalCounts,
    /// Claims are taken over before their lease has passed.
    TakeOverAtOnce,
}

/// The last step's effect, if a property depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Event {
    /// Nothing of interest.
    #[default]
    None,
    /// A message was delivered for the first time.
    Delivered,
    /// A message was delivered again.
    Duplicate,
    /// A message was delivered after a later message of another key.
    Late,
    /// A message was delivered for the first time, after a later one of its key.
    OutOfOrder,
    /// A claim was taken over.
    TakenOver,
    /// A settlement came too late and wrote nothing.
    Fenced,
    /// A settlement came too late and wrote something.
    Unfenced,
    /// A delayed message was promoted.
    Retried,
}
