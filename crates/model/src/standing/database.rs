//! The tables of a lane, and the texts that change them: each all or nothing.

use super::{Standing, StandingFlaw};
use crate::ids::Ids;

/// The kind of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// It names its messages.
    List,
    /// It stands, and its owner may take rows.
    Open,
    /// It stands, and its owner may only settle.
    Closed,
}

/// A row of `outbox_claims`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Claim {
    pub id: u64,
    pub token: u64,
    pub kind: Kind,
    /// Those of a list.
    pub messages: Ids,
    /// The highest id that may be taken under a standing claim.
    pub mark: u64,
    /// The text that made it, among those about its predecessor.
    pub text: u64,
    /// Whether the lease has passed.
    pub expired: bool,
}

impl Claim {
    pub(super) fn stands(&self) -> bool {
        self.kind != Kind::List
    }
}

/// The outcomes of messages, as a settlement writes them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Outcomes {
    pub sent: Ids,
    /// Delayed, or behind a delayed one.
    pub delayed: Ids,
}

impl Outcomes {
    pub(super) fn all(self) -> Ids {
        self.sent.union(self.delayed)
    }
}

/// A text whose reply was lost: it may be executed at any time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Request {
    Make { version: u64, low: u64, token: u64, mark: u64 },
    Settle(Settle),
}

/// The settlement of a claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Settle {
    pub claim: u64,
    /// Its number among the texts about this claim.
    pub text: u64,
    pub outcomes: Outcomes,
    pub next: Next,
    /// The turn of the look, and the id to which a standing claim raises `low` if the turn is still the same.
    pub low: Option<(u64, u64)>,
}

impl Settle {
    pub(super) const fn is_end(&self) -> bool {
        !matches!(self.next, Next::Stand(_))
    }
}

/// The successor of a settled claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Next {
    /// Nothing.
    End,
    /// A standing claim up to this mark.
    Stand(u64),
    /// A list of what is in flight.
    List(Ids),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Database {
    /// Messages whose transaction is open.
    pub open: Ids,
    pub committed: Ids,
    pub pending: Ids,
    /// Those that hold their key.
    pub delayed: Ids,
    /// Pending ones that were taken over.
    pub suspects: Ids,
    pub version: u64,
    /// Raised when rows are put back.
    pub turn: u64,
    /// The lowest row that was put back since `low` was raised.
    pub low: u64,
    pub claims: Vec<Claim>,
    pub next_claim: u64,
    /// The claims of which a receipt was written.
    pub receipts: Vec<u64>,
}

impl Database {
    pub(super) fn inserted(&self) -> Ids {
        self.open.union(self.committed)
    }

    /// The largest committed id that was assigned before those of all open transactions.
    pub(super) fn floor(&self) -> u64 {
        let oldest = self.open.first().unwrap_or(u64::MAX);
        self.committed.iter().filter(|id| *id < oldest).last().unwrap_or(0)
    }

    pub(super) fn standing(&self) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.stands())
    }

    pub(super) fn of_token(&self, token: u64) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.token == token)
    }

    /// The messages of all lists.
    pub(super) fn listed(&self) -> Ids {
        self.claims.iter().fold(Ids::default(), |ids, claim| ids.union(claim.messages))
    }

    pub(super) fn put_back(&mut self, id: u64) {
        self.version += 1;
        self.turn += 1;
        self.low = self.low.min(id);
        self.delayed.remove(id);
        self.pending.insert(id);
    }

    /// Adds a row with the next number.
    fn insert(&mut self, claim: Claim) -> u64 {
        self.next_claim += 1;
        self.claims.push(Claim { id: self.next_claim, ..claim });
        self.next_claim
    }

    /// Makes a list or, without messages, a standing claim, if the version is that of the look.
    pub(super) fn claim(&mut self, (version, low): (u64, u64), token: u64, messages: Ids, mark: u64) -> Option<u64> {
        if self.version != version {
            return None;
        }
        self.version += 1;
        self.low = self.low.max(low);
        let kind = if messages.is_empty() { Kind::Open } else { Kind::List };
        Some(self.insert(Claim { id: 0, token, kind, messages, mark, text: 0, expired: false }))
    }

    /// Settles a claim if it is live. Returns whether it was.
    pub(super) fn settle(&mut self, protocol: &Standing, settle: &Settle) -> bool {
        let found = self.claims.iter().position(|claim| claim.id == settle.claim);
        let rows = settle.outcomes.all().both(self.pending);
        let delayed = settle.outcomes.delayed.both(rows);
        if found.is_none() && !protocol.is(StandingFlaw::NoFence) {
            return false;
        }
        self.pending = self.pending.without(rows);
        self.suspects = self.suspects.without(rows);
        self.delayed = self.delayed.union(delayed);
        if found.is_some() && !self.receipts.contains(&settle.claim) {
            self.receipts.push(settle.claim);
        }
        if let Some((turn, low)) = settle.low
            && (turn == self.turn || protocol.is(StandingFlaw::LowWithoutTurn))
        {
            self.low = self.low.max(low);
        }
        self.succeed(protocol, settle);
        found.is_some()
    }

    /// The rows that a claim may settle.
    pub(super) fn of_claim(&self, claim: u64) -> Ids {
        let Some(claim) = self.claims.iter().find(|it| it.id == claim) else { return Ids::default() };
        if !claim.stands() {
            return claim.messages;
        }
        self.pending.without(self.listed()).iter().filter(|id| *id <= claim.mark).collect()
    }

    fn succeed(&mut self, protocol: &Standing, settle: &Settle) {
        let Some(at) = self.claims.iter().position(|claim| claim.id == settle.claim) else { return };
        match &settle.next {
            Next::Stand(mark) if protocol.is(StandingFlaw::RowKept) => {
                self.claims.iter_mut().filter(|it| it.id == settle.claim).for_each(|it| it.mark = it.mark.max(*mark));
            }
            Next::Stand(mark) => {
                let claim = self.claims.remove(at);
                let kind = if protocol.is(StandingFlaw::KindNotCopied) { Kind::Open } else { claim.kind };
                self.insert(Claim { kind, mark: *mark, text: settle.text, expired: false, ..claim });
            }
            Next::List(messages) => {
                let claim = self.claims.remove(at);
                let text = settle.text;
                self.insert(Claim { kind: Kind::List, messages: *messages, mark: 0, text, expired: false, ..claim });
            }
            Next::End => drop(self.claims.remove(at)),
        }
    }

    /// Turns a closed claim into a list of the rows that were read before.
    pub(super) fn list(&mut self, protocol: &Standing, claim: u64, token: u64, rows: Ids) {
        let by_token = protocol.is(StandingFlaw::KindNotCopied);
        let is_it = |it: &Claim| it.kind == Kind::Closed && if by_token { it.token == token } else { it.id == claim };
        let Some(at) = self.claims.iter().position(is_it) else { return };
        let claim = self.claims.remove(at);
        let messages = rows.both(self.pending);
        self.turn += 1;
        if !messages.is_empty() {
            let token = if protocol.is(StandingFlaw::ListWithoutToken) { u64::MAX } else { claim.token };
            self.insert(Claim { token, kind: Kind::List, messages, mark: 0, ..claim });
        }
    }
}
