//! A relay: its memory, and its choice of rows.

use super::{
    Standing, StandingFlaw,
    database::{Claim, Database, Kind, Next, Outcomes, Settle},
};
use crate::ids::Ids;

/// The claim of a relay, as far as it knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Holding {
    #[default]
    Nothing,
    /// The reply of the text that makes a standing claim was lost.
    Finding {
        token: u64,
    },
    Standing {
        claim: u64,
        token: u64,
        mark: u64,
    },
    List {
        claim: u64,
        token: u64,
    },
}

/// A look whose reply is on its way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Look {
    /// Only with a flaw: the rows are still to be read.
    pub is_half: bool,
    pub version: u64,
    pub turn: u64,
    low: u64,
    floor: u64,
    pub claims: Vec<Claim>,
    pending: Ids,
    delayed: Ids,
    suspects: Ids,
    /// The messages in memory when the look was sent.
    before: Ids,
}

/// A relay process.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Relay {
    pub holding: Holding,
    /// Whether the lease lasts, by its own clock.
    pub lasts: bool,
    /// Rows up to this id are not looked at.
    pub start: u64,
    pub look: Option<Look>,
    pub looks: u8,
    /// The messages that may be handed to the broker.
    pub ready: Ids,
    pub on_the_way: Ids,
    pub outcomes: Outcomes,
    /// Failures that were settled while a look was on its way.
    pub settled_meanwhile: Ids,
    /// The turn of its last look, and the id to which a settlement may raise `low`.
    pub low: Option<(u64, u64)>,
    /// The highest id that a look has seen.
    pub seen: u64,
    /// A settlement whose reply was lost.
    pub unsure: Option<Settle>,
    /// The texts about the live claim whose replies were lost: they may be executed late.
    pub lost: u64,
    /// Whether such a text ends the claim.
    pub ends: bool,
}

/// The result of a look.
pub(super) enum Found {
    Nothing,
    /// These may be claimed.
    Rows(Rows),
}

/// Rows that a relay without a claim may take.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Rows {
    pub version: u64,
    pub free: Ids,
    pub has_suspects: bool,
    /// The mark of a standing claim.
    pub mark: u64,
    /// `low` after the claim.
    pub low: u64,
    /// Whether a relay has a standing claim.
    pub is_held: bool,
}

impl Relay {
    pub(super) fn memory(&self) -> Ids {
        self.ready.union(self.on_the_way).union(self.outcomes.all())
    }

    /// Messages of keys of which a failure is not settled yet, or was not when the look was sent.
    fn held(&self, protocol: &Standing) -> Ids {
        let settled = if protocol.is(StandingFlaw::KeysForgotten) { Ids::default() } else { self.settled_meanwhile };
        protocol.of_keys(self.outcomes.delayed.union(settled))
    }

    /// Whether it has sent a text that ends its standing claim. That may be executed late, so it takes nothing more.
    fn is_ending(&self) -> bool {
        self.ends || self.unsure.iter().any(Settle::is_end)
    }

    /// The claim as it knows it.
    pub(super) fn claim(&self) -> Option<u64> {
        match self.holding {
            Holding::Nothing | Holding::Finding { .. } => None,
            Holding::Standing { claim, .. } | Holding::List { claim, .. } => Some(claim),
        }
    }

    pub(super) fn token(&self) -> Option<u64> {
        match self.holding {
            Holding::Nothing => None,
            Holding::Finding { token } | Holding::Standing { token, .. } | Holding::List { token, .. } => Some(token),
        }
    }

    /// Reads at one moment, or with a flaw at two.
    pub(super) fn read(&mut self, protocol: &Standing, db: &Database) {
        let rows =
            |look: &mut Look| (look.pending, look.delayed, look.suspects) = (db.pending, db.delayed, db.suspects);
        if let Some(look) = &mut self.look {
            rows(look);
            look.is_half = false;
            return;
        }
        self.looks += 1;
        let mut look = Look {
            is_half: protocol.is(StandingFlaw::ReadsSplit),
            version: db.version,
            turn: db.turn,
            low: db.low,
            floor: db.floor(),
            claims: db.claims.clone(),
            pending: Ids::default(),
            delayed: Ids::default(),
            suspects: Ids::default(),
            before: self.memory(),
        };
        rows(&mut look);
        self.look = Some(look);
    }

    /// Gets the reply of the look.
    pub(super) fn found(&mut self, protocol: &Standing) -> Found {
        let Some(look) = self.look.take() else { return Found::Nothing };
        let found = self.judge(protocol, &look);
        self.settled_meanwhile = Ids::default();
        found
    }

    fn judge(&mut self, protocol: &Standing, look: &Look) -> Found {
        let start = self.start;
        if look.low <= start {
            // Rows were put back below the start: the next look begins there.
            self.start = look.low.saturating_sub(1);
            return Found::Nothing;
        }
        let listed = look.claims.iter().fold(Ids::default(), |ids, claim| ids.union(claim.messages));
        let visible: Ids = look.pending.iter().filter(|id| *id > start).collect();
        let held = |id: u64| look.delayed.iter().any(|first| first < id && protocol.key(first) == protocol.key(id));
        let mut free: Ids = visible.without(listed).iter().filter(|id| !held(*id)).collect();
        let foreign = look.claims.iter().filter(|claim| Some(claim.token) != self.token());
        let barred = foreign.fold(Ids::default(), |ids, claim| ids.union(claim.messages));
        free = free.without(protocol.of_keys(barred));
        let lowest = visible.union(listed).union(self.memory()).union(look.before).first();
        let highest = lowest.map_or(look.floor, |id| look.floor.min(id - 1));
        self.seen = self.seen.max(visible.last().unwrap_or(0));
        match self.holding {
            Holding::Standing { token, mark, .. } => {
                let is_own = |claim: &Claim| claim.token == token && claim.kind == Kind::Open;
                let is_open = look.claims.iter().any(is_own);
                let may_take = !self.is_ending() || protocol.is(StandingFlaw::TakesWhileEnding);
                if may_take && (is_open || protocol.is(StandingFlaw::OwnRowUnread)) {
                    self.start = highest;
                    self.low = Some((look.turn, highest + 1));
                    self.take(protocol, look, free, mark);
                }
                Found::Nothing
            }
            Holding::Nothing => {
                self.start = highest;
                Found::Rows(Rows {
                    version: look.version,
                    free,
                    has_suspects: !look.suspects.is_empty(),
                    mark: self.seen + protocol.ahead,
                    low: highest + 1,
                    is_held: look.claims.iter().any(Claim::stands),
                })
            }
            Holding::Finding { .. } | Holding::List { .. } => Found::Nothing,
        }
    }

    /// Takes rows under a standing claim. Rows of a key follow in their order, so a later one is not taken without an earlier one.
    fn take(&mut self, protocol: &Standing, look: &Look, free: Ids, mark: u64) {
        let mut known = self.memory();
        if !protocol.is(StandingFlaw::IdsForgotten) {
            known = known.union(look.before);
        }
        let held = self.held(protocol);
        let mut left = Ids::default();
        for id in free.without(known).iter() {
            let is_suspect = look.suspects.contains(id) && !protocol.is(StandingFlaw::TakeOversIgnored);
            let is_above = id > mark && !protocol.is(StandingFlaw::AboveMark);
            let is_behind = protocol.of_keys(left).contains(id);
            if held.contains(id) || is_suspect || is_above || is_behind {
                left.insert(id);
            } else {
                self.ready.insert(id);
            }
        }
    }

    /// Messages that may be handed to the broker: the first of each key in memory.
    pub(super) fn sendable(&self, protocol: &Standing) -> Ids {
        let open = self.ready.union(self.on_the_way);
        let is_first = |id: &u64| open.iter().all(|other| other >= *id || protocol.key(other) != protocol.key(*id));
        if self.lasts { self.ready.iter().filter(is_first).collect() } else { Ids::default() }
    }

    pub(super) fn confirmed(&mut self, id: u64) {
        self.on_the_way.remove(id);
        self.outcomes.sent.insert(id);
    }

    /// A failure delays the message, and the later ones of its key in memory.
    pub(super) fn failed(&mut self, protocol: &Standing, id: u64) {
        self.on_the_way.remove(id);
        let behind = self.ready.both(protocol.of_keys([id].into_iter().collect()));
        self.ready = self.ready.without(behind);
        self.outcomes.delayed = self.outcomes.delayed.union(behind);
        self.outcomes.delayed.insert(id);
    }

    /// The settlement that can be written now.
    pub(super) fn settlement(&self, protocol: &Standing) -> Option<Settle> {
        let open = self.ready.union(self.on_the_way);
        let (claim, next, low) = match self.holding {
            Holding::Standing { claim, mark, .. } => {
                if self.ends {
                    return None;
                }
                if self.outcomes.all().is_empty() && self.seen <= mark {
                    return None;
                }
                (claim, Next::Stand(mark.max(self.seen + protocol.ahead)), self.low)
            }
            Holding::List { claim, .. } if open.is_empty() => (claim, Next::End, None),
            Holding::List { claim, .. } if !self.outcomes.all().is_empty() => (claim, Next::List(open), None),
            _ => return None,
        };
        Some(Settle { claim, text: self.lost, outcomes: self.outcomes, next, low })
    }

    /// Ends a standing claim: what is in flight becomes a list, and outcomes are written.
    pub(super) fn ending(&self) -> Option<Settle> {
        let Holding::Standing { claim, .. } = self.holding else { return None };
        let open = self.ready.union(self.on_the_way);
        let next = if open.is_empty() { Next::End } else { Next::List(open) };
        Some(Settle { claim, text: self.lost, outcomes: self.outcomes, next, low: None })
    }

    /// A settlement was executed: its messages are no longer in memory.
    pub(super) fn settled(&mut self, settle: &Settle) {
        let all = settle.outcomes.all();
        if self.look.is_some() {
            self.settled_meanwhile = self.settled_meanwhile.union(settle.outcomes.delayed);
        }
        self.outcomes.sent = self.outcomes.sent.without(all);
        self.outcomes.delayed = self.outcomes.delayed.without(all);
    }

    /// Goes on with the claim that has its token.
    pub(super) fn adopt(&mut self, claim: Option<&Claim>) {
        (self.lost, self.ends) = (0, false);
        match claim {
            Some(claim) if claim.stands() => {
                self.holding = Holding::Standing { claim: claim.id, token: claim.token, mark: claim.mark };
            }
            Some(claim) => self.holding = Holding::List { claim: claim.id, token: claim.token },
            None => self.forget(),
        }
    }

    /// Drops everything: the claim is gone.
    pub(super) fn forget(&mut self) {
        (self.holding, self.lasts) = (Holding::Nothing, false);
        (self.ready, self.on_the_way, self.outcomes) = (Ids::default(), Ids::default(), Outcomes::default());
        (self.low, self.unsure) = (None, None);
    }
}
