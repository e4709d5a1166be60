//! The tables, and the transactions that change them. Each function here is one text of several statements, all or
//! nothing.

use crate::{
    ids::Ids,
    protocol::{Event, Flaw, Protocol},
};

/// A row of `outbox_claims`. Its number is also its token, which no other claim has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    pub id: u64,
    pub owner: u8,
    /// Set if the reply is lost: the owner finds the claim by it.
    pub token: u8,
    pub messages: Ids,
    /// Whether `lease_until` has passed.
    pub expired: bool,
}

/// The outcomes of a claim's messages; messages without one return to pending.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Settlement {
    pub sent: Ids,
    pub delayed: Ids,
    pub dead: Ids,
}

impl Settlement {
    pub(crate) fn all(self) -> Ids {
        self.sent.union(self.delayed).union(self.dead)
    }
}

/// A compare-and-set that makes the claims of a pass.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NewClaim {
    pub version: u64,
    pub low: u64,
    pub owner: u8,
    pub token: u8,
    /// The messages of each. Empty if nothing is claimed and rows only move behind.
    pub claims: Vec<Ids>,
    /// Rows that move behind the other rows of their keys.
    pub behind: Ids,
}

/// A text that was sent and whose reply was lost: it may still execute, at any time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    Claim(NewClaim),
    Settle { claim: u64, owner: u8, settlement: Settlement },
    Renew(u64),
}

/// One lane of the database.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Database {
    /// Messages whose transaction is open.
    pub open: Ids,
    pub committed: Ids,
    pub rolled_back: Ids,
    pub pending: Ids,
    pub delayed: Ids,
    pub dead: Ids,
    /// `outbox_head`.
    pub version: u64,
    pub low: u64,
    pub claims: Vec<Claim>,
    pub next_claim: u64,
    /// `outbox_sent`, limited to claims that a relay may still ask about.
    pub marks: Vec<u64>,
}

impl Database {
    /// Ids that were assigned.
    pub(crate) fn inserted(&self) -> Ids {
        self.open.union(self.committed).union(self.rolled_back)
    }

    /// The rows that a look can read: those in pending, and with a flaw uncommitted ones too.
    pub(crate) fn readable(&self, flaw: Option<Flaw>) -> Ids {
        if flaw == Some(Flaw::DirtyRead) { self.pending.union(self.open) } else { self.pending }
    }

    /// The highest allowed floor: the largest committed id that was assigned before those of all open transactions.
    pub(crate) fn floor(&self) -> u64 {
        let oldest = self.open.first().unwrap_or(u64::MAX);
        self.committed.iter().filter(|id| *id < oldest).last().unwrap_or(0)
    }

    pub(crate) fn commit(&mut self, id: u64) {
        self.open.remove(id);
        self.committed.insert(id);
        self.pending.insert(id);
    }

    /// Makes the claims if the version is still the one that the look saw.
    pub(crate) fn claim(&mut self, new: &NewClaim, flaw: Option<Flaw>) -> &[Claim] {
        let won = self.version == new.version || flaw == Some(Flaw::NoCompareAndSet);
        if won || flaw == Some(Flaw::BehindNoClaim) {
            let rows = new.behind.both(self.pending);
            self.pending = self.pending.without(rows);
            self.delayed = self.delayed.union(rows);
        }
        if !won {
            return &[];
        }
        self.version += 1;
        if new.claims.is_empty() {
            return &[];
        }
        self.low = new.low;
        let (older, &NewClaim { owner, token, .. }) = (self.claims.len(), new);
        for &messages in &new.claims {
            self.next_claim += 1;
            self.claims.push(Claim { id: self.next_claim, owner, token, messages, expired: false });
        }
        self.claims.get(older..).unwrap_or_default()
    }

    /// Settles a claim if it is live. An empty settlement is a release and leaves no mark.
    pub(crate) fn settle(&mut self, claim: u64, owner: u8, settlement: Settlement, flaw: Option<Flaw>) -> Event {
        let stands = self.claims.iter().any(|c| c.id == claim);
        let passes = match flaw {
            Some(Flaw::NoFence) => true,
            Some(Flaw::FenceOnOwner) => self.claims.iter().any(|c| c.owner == owner),
            _ => stands,
        };
        if !passes {
            return Event::Fenced;
        }
        let rows = settlement.all().both(self.pending);
        self.pending = self.pending.without(rows);
        self.delayed = self.delayed.union(settlement.delayed.both(rows));
        self.dead = self.dead.union(settlement.dead.both(rows));
        self.claims.retain(|c| c.id != claim);
        if !settlement.all().is_empty() && !self.marks.contains(&claim) {
            self.marks.push(claim);
        }
        if stands || rows.is_empty() { Event::None } else { Event::Unfenced }
    }

    /// Renews the lease of a claim. Returns whether the claim is live.
    pub(crate) fn renew(&mut self, claim: u64) -> bool {
        let standing = self.claims.iter_mut().find(|c| c.id == claim);
        standing.map(|claim| claim.expired = false).is_some()
    }

    /// Promotes a row that is due.
    pub(crate) fn promote(&mut self, id: u64, flaw: Option<Flaw>) {
        if flaw != Some(Flaw::PromoteKeepsVersion) {
            self.version += 1;
        }
        if flaw != Some(Flaw::PromoteKeepsLow) {
            self.low = self.low.min(id);
        }
        self.delayed.remove(id);
        self.pending.insert(id);
    }

    pub(crate) fn execute(&mut self, request: &Request, protocol: &Protocol) -> Event {
        match request {
            Request::Claim(new) => {
                self.claim(new, protocol.flaw);
                Event::None
            }
            Request::Settle { claim, owner, settlement } => self.settle(*claim, *owner, *settlement, protocol.flaw),
            Request::Renew(claim) => {
                self.renew(*claim);
                Event::None
            }
        }
    }
}
