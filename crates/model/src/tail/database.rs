//! The tables of a lane, the texts that change them, each all or nothing, and the binary log.

use super::{
    Tail, TailFlaw,
    stream::{Entry, Successor},
};
use crate::ids::Ids;

/// The kind of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// It names its messages.
    List,
    /// A tail, whose owner may take rows.
    Open,
    /// A tail, whose owner may only settle.
    Closed,
    /// A tail that keeps others from claims until the lists that are there have ended.
    Forming,
}

/// A row of `outbox_claims`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Claim {
    pub id: u64,
    pub token: u64,
    pub kind: Kind,
    /// Those of a list.
    pub messages: Ids,
    /// The highest id that may be taken under a tail.
    pub mark: u64,
    /// The text that made it, among those about its predecessor.
    pub text: u64,
    /// Whether the lease has passed.
    pub expired: bool,
}

impl Claim {
    pub(super) fn list(token: u64, messages: Ids) -> Self {
        Self { id: 0, token, kind: Kind::List, messages, mark: 0, text: 0, expired: false }
    }

    pub(super) fn forming(token: u64) -> Self {
        Self { kind: Kind::Forming, ..Self::list(token, Ids::default()) }
    }

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

    pub(super) fn remove(&mut self, ids: Ids) {
        self.sent = self.sent.without(ids);
        self.delayed = self.delayed.without(ids);
    }
}

/// A text whose reply was lost: it may be executed at any time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Request {
    Make { token: u64 },
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
}

impl Settle {
    pub(super) const fn is_end(&self) -> bool {
        !matches!(self.next, Next::Tail(_) | Next::Open(_))
    }
}

/// The successor of a settled claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Next {
    /// Nothing.
    End,
    /// An open tail up to this mark, if it is still forming.
    Open(u64),
    /// A tail up to this mark.
    Tail(u64),
    /// A list of what is in flight.
    List(Ids),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Database {
    /// Messages whose transaction is open.
    pub open: Ids,
    /// Those whose transaction is prepared.
    pub prepared: Ids,
    pub committed: Ids,
    pub rolled_back: Ids,
    /// Committed ones that the log has shown, and no read sees yet.
    pub unseen: Ids,
    pub pending: Ids,
    /// Those that hold their key.
    pub delayed: Ids,
    /// Pending ones that were taken over.
    pub suspects: Ids,
    pub version: u64,
    /// Whether the version is one that no text can raise.
    pub is_sealed: bool,
    /// The lowest row that was put back since `low` was raised.
    pub low: u64,
    pub claims: Vec<Claim>,
    pub next_claim: u64,
    /// The claims of which a receipt was written.
    pub receipts: Vec<u64>,
    /// The events that some stream has not shown.
    pub log: Vec<Entry>,
}

impl Database {
    pub(super) fn unfinished(&self) -> Ids {
        self.open.union(self.prepared)
    }

    pub(super) fn inserted(&self) -> Ids {
        self.unfinished().union(self.committed).union(self.rolled_back)
    }

    pub(super) fn insert(&mut self, protocol: &Tail, id: u64) {
        self.open.insert(id);
        if protocol.is(TailFlaw::TakenBeforeCommit) {
            self.log.push(Entry::Inserted(id));
        }
    }

    pub(super) fn commit(&mut self, protocol: &Tail, id: u64) {
        if self.prepared.contains(id) {
            self.log.push(Entry::PreparedCommitted);
        } else if !protocol.is(TailFlaw::TakenBeforeCommit) {
            self.log.push(Entry::Inserted(id));
        }
        self.open.remove(id);
        self.prepared.remove(id);
        self.committed.insert(id);
        self.unseen.insert(id);
    }

    /// Commits become visible in the order of the log: at the latest when a later one is answered.
    pub(super) fn show(&mut self) {
        self.pending = self.pending.union(std::mem::take(&mut self.unseen));
    }

    /// The largest committed id that was assigned before those of all open transactions.
    pub(super) fn floor(&self) -> u64 {
        let oldest = self.unfinished().union(self.unseen).first().unwrap_or(u64::MAX);
        self.committed.iter().filter(|id| *id < oldest).last().unwrap_or(0)
    }

    pub(super) fn tail(&self) -> Option<&Claim> {
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
        self.show();
        self.version += 1;
        self.low = self.low.min(id);
        self.delayed.remove(id);
        self.pending.insert(id);
        self.log.push(Entry::PutBack(id));
    }

    /// Adds a row with the next number.
    fn add(&mut self, claim: Claim) -> u64 {
        self.next_claim += 1;
        self.claims.push(Claim { id: self.next_claim, ..claim });
        self.next_claim
    }

    /// Whether the lane has no list.
    pub(super) fn is_alone(&self) -> bool {
        self.claims.iter().all(Claim::stands)
    }

    /// Seals the lane, and makes a tail that is forming, if the lane has none.
    pub(super) fn form(&mut self, protocol: &Tail, token: u64) -> Option<u64> {
        self.show();
        if self.is_sealed || self.tail().is_some() {
            return None;
        }
        self.version += 1;
        self.is_sealed = !protocol.is(TailFlaw::NoSeal);
        Some(self.add(Claim::forming(token)))
    }

    /// Makes a list, if the version is that of the look.
    pub(super) fn claim(&mut self, (version, low): (u64, u64), claim: Claim) -> Option<u64> {
        self.show();
        if self.version != version || self.is_sealed {
            return None;
        }
        self.version += 1;
        self.low = self.low.max(low);
        Some(self.add(claim))
    }

    /// Renews the lease of a claim if it is live. Returns whether it is.
    pub(super) fn renew(&mut self, claim: u64) -> bool {
        let Some(claim) = self.claims.iter_mut().find(|it| it.id == claim) else { return false };
        claim.expired = false;
        if claim.stands() {
            self.log.push(Entry::Renewed { claim: claim.id, token: claim.token });
        }
        true
    }

    /// Settles a claim if it is live. Returns whether it was.
    pub(super) fn settle(&mut self, protocol: &Tail, settle: &Settle) -> bool {
        let found = self.claims.iter().position(|claim| claim.id == settle.claim);
        let seen = self.pending;
        // A locking read waits for the rows, as their removal does.
        self.show();
        let removed = settle.outcomes.all().both(self.pending);
        let of_text = settle.outcomes.delayed.both(removed);
        let delayed = if protocol.is(TailFlaw::DelayedUnlocked) { of_text.both(seen) } else { of_text };
        if found.is_none() && !protocol.is(TailFlaw::NoFence) {
            return false;
        }
        self.pending = self.pending.without(removed);
        self.suspects = self.suspects.without(removed);
        self.delayed = self.delayed.union(delayed);
        if found.is_some() && !self.receipts.contains(&settle.claim) {
            self.receipts.push(settle.claim);
        }
        let successor = found.and_then(|at| self.succeed(protocol, at, settle));
        self.log.push(Entry::Settled { claim: settle.claim, removed, delayed, successor });
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

    fn succeed(&mut self, protocol: &Tail, at: usize, settle: &Settle) -> Option<Successor> {
        let old = self.claims.remove(at);
        let text = settle.text;
        let new = match &settle.next {
            Next::Open(mark) if old.kind == Kind::Forming => {
                self.log.push(Entry::Begun { token: old.token });
                Claim { kind: Kind::Open, mark: *mark, text, expired: false, ..old }
            }
            Next::Tail(mark) if protocol.is(TailFlaw::RowKept) => {
                let mark = old.mark.max(*mark);
                self.claims.push(Claim { mark, ..old });
                return Some(Successor { claim: old.id, kind: old.kind, mark });
            }
            Next::Open(mark) | Next::Tail(mark) => {
                let kind = if protocol.is(TailFlaw::KindNotCopied) { Kind::Open } else { old.kind };
                Claim { kind, mark: *mark, text, expired: false, ..old }
            }
            Next::List(messages) => {
                Claim { kind: Kind::List, messages: *messages, mark: 0, text, expired: false, ..old }
            }
            Next::End => {
                self.unseal(protocol, old.stands());
                return None;
            }
        };
        self.unseal(protocol, old.stands() && !new.stands());
        Some(Successor { claim: self.add(new), kind: new.kind, mark: new.mark })
    }

    pub(super) fn close(&mut self, protocol: &Tail) {
        self.show();
        for claim in self.claims.iter_mut().filter(|it| matches!(it.kind, Kind::Open | Kind::Forming)) {
            claim.kind = Kind::Closed;
            self.log.push(Entry::Shut { token: claim.token });
        }
        self.unseal(protocol, protocol.is(TailFlaw::UnsealedAtClose));
    }

    /// Goes on with a version that no look has read.
    pub(super) fn unseal(&mut self, protocol: &Tail, is_over: bool) {
        if is_over && self.is_sealed {
            self.is_sealed = false;
            self.version += u64::from(!protocol.is(TailFlaw::VersionRepeats));
        }
    }

    /// Turns a closed claim into a list of the rows that were read before.
    pub(super) fn list(&mut self, protocol: &Tail, claim: u64, token: u64, rows: Ids) {
        self.show();
        let by_token = protocol.is(TailFlaw::KindNotCopied);
        let is_it = |it: &Claim| it.kind == Kind::Closed && if by_token { it.token == token } else { it.id == claim };
        let Some(at) = self.claims.iter().position(is_it) else { return };
        let claim = self.claims.remove(at);
        let messages = rows.both(self.pending);
        self.unseal(protocol, true);
        if !messages.is_empty() {
            self.add(Claim { kind: Kind::List, messages, mark: 0, ..claim });
        }
    }

    /// Deletes a claim. A tail stays sealed: only its own release knows of seals.
    pub(super) fn delete(&mut self, claim: u64) -> Option<Claim> {
        let at = self.claims.iter().position(|it| it.id == claim)?;
        let claim = self.claims.remove(at);
        if matches!(claim.kind, Kind::Open | Kind::Forming) {
            self.log.push(Entry::Shut { token: claim.token });
        }
        Some(claim)
    }
}
