//! A relay: its memory, and its choice of rows.

use super::{
    Tail, TailFlaw,
    database::{Claim, Database, Kind, Next, Outcomes, Settle},
    stream::{Entry, Phase, Stream, Successor},
};
use crate::ids::Ids;

/// The claim of a relay, as far as it knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Holding {
    #[default]
    Nothing,
    Tail {
        claim: u64,
        token: u64,
        mark: u64,
        /// Whether it was opened, as far as the relay knows.
        is_open: bool,
    },
    List {
        claim: u64,
        token: u64,
    },
}

/// A look whose reply is on its way. It reads one moment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Look {
    pub version: u64,
    low: u64,
    floor: u64,
    pub claims: Vec<Claim>,
    pending: Ids,
    delayed: Ids,
    suspects: Ids,
}

/// A relay process.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Relay {
    /// Whether it is of an earlier release: it makes no tails, and sees none.
    pub is_earlier: bool,
    pub holding: Holding,
    /// Whether the lease lasts, by its own clock.
    pub lasts: bool,
    /// Whether it was suspended while its lease passed.
    pub has_slept: bool,
    /// Rows up to this id are not looked at.
    pub start: u64,
    pub look: Option<Look>,
    pub looks: u8,
    pub stream: Option<Stream>,
    /// The messages that may be handed to the broker.
    pub ready: Ids,
    pub on_the_way: Ids,
    pub outcomes: Outcomes,
    /// The highest id that it has seen.
    pub seen: u64,
    /// A settlement whose reply was lost.
    pub unsure: Option<Settle>,
    /// The texts about the live claim whose replies were lost: any of them may be executed late.
    pub texts: Vec<Settle>,
}

/// Rows that a relay without a claim may take.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Rows {
    pub version: u64,
    pub free: Ids,
    /// `low` after the claim.
    pub low: u64,
    /// The live claims.
    pub claims: Vec<Claim>,
}

impl Relay {
    pub(super) fn in_flight(&self) -> Ids {
        self.ready.union(self.on_the_way)
    }

    /// A text that ends the tail was sent. It may be executed late, so nothing more is taken, whatever becomes of it.
    pub(super) fn ends_taking(&mut self, protocol: &Tail) {
        if let Some(stream) = self.stream.as_mut().filter(|_| !protocol.is(TailFlaw::TakesWhileEnding)) {
            stream.phase = Phase::Over;
        }
    }

    /// The claim as it knows it.
    pub(super) fn claim(&self) -> Option<u64> {
        match self.holding {
            Holding::Nothing => None,
            Holding::Tail { claim, .. } | Holding::List { claim, .. } => Some(claim),
        }
    }

    pub(super) fn token(&self) -> Option<u64> {
        match self.holding {
            Holding::Nothing => None,
            Holding::Tail { token, .. } | Holding::List { token, .. } => Some(token),
        }
    }

    /// Reads the tables. A relay without a stream opens one before.
    pub(super) fn read(&mut self, db: &Database) {
        self.looks += 1;
        if !self.is_earlier {
            self.stream.get_or_insert_with(|| Stream { at: db.log.len(), ..Stream::default() });
        }
        self.look = Some(Look {
            version: db.version,
            low: db.low,
            floor: db.floor(),
            claims: db.claims.clone(),
            pending: db.pending,
            delayed: db.delayed,
            suspects: db.suspects,
        });
    }

    /// Gets the reply of a look without a claim.
    pub(super) fn found(&mut self, protocol: &Tail) -> Option<Rows> {
        let look = self.look.take()?;
        let start = self.start;
        if look.low <= start {
            // Rows were put back below the start: the next look begins there.
            self.start = look.low.saturating_sub(1);
            return None;
        }
        let listed = look.claims.iter().fold(Ids::default(), |ids, claim| ids.union(claim.messages));
        let visible: Ids = look.pending.iter().filter(|id| *id > start).collect();
        let held = |id: u64| look.delayed.iter().any(|first| first < id && protocol.key(first) == protocol.key(id));
        let free: Ids = visible.without(listed).iter().filter(|id| !held(*id)).collect();
        let lowest = visible.union(listed).first();
        let highest = lowest.map_or(look.floor, |id| look.floor.min(id - 1));
        self.start = highest;
        self.seen = self.seen.max(visible.last().unwrap_or(0));
        Some(Rows {
            version: look.version,
            free: free.without(protocol.of_keys(listed)),
            low: highest + 1,
            claims: look.claims,
        })
    }

    /// Begins a tail with the rows that were there before: gets their read's reply. The later ones come from the
    /// stream.
    pub(super) fn begin(&mut self, protocol: &Tail, log: &[Entry]) {
        let (Some(look), Holding::Tail { token, mark, .. }) = (self.look.take(), &self.holding) else { return };
        let token = *token;
        let mark = *mark;
        let listed = look.claims.iter().fold(Ids::default(), |ids, claim| ids.union(claim.messages));
        let Some(stream) = &mut self.stream else { return };
        stream.is_read = true;
        if protocol.is(TailFlaw::StreamOpenedLate) {
            (stream.at, stream.phase) = (log.len(), Phase::Open);
        }
        stream.held = stream.held.union(look.delayed);
        let new = look.pending.without(listed).without(stream.known);
        stream.known = stream.known.union(look.pending);
        // Such rows are sent under claims that name them.
        let has_suspects = !look.suspects.is_empty() && !protocol.is(TailFlaw::TakeOversIgnored);
        let is_open = look.claims.iter().any(|claim| claim.token == token && claim.kind == Kind::Open);
        if has_suspects || !is_open && !protocol.is(TailFlaw::OwnRowUnread) {
            stream.phase = Phase::Over;
            return;
        }
        self.arrive(protocol, new, mark);
    }

    /// Applies the next event of the stream.
    pub(super) fn next(&mut self, protocol: &Tail, log: &[Entry]) {
        let own = self.claim();
        let token = self.token();
        let Some(stream) = &mut self.stream else { return };
        let Some(entry) = log.get(stream.at) else { return };
        stream.at += 1;
        let is_counted = stream.phase != Phase::Before || protocol.is(TailFlaw::EarlierEventsCount);
        match *entry {
            Entry::Begun { token: of } if Some(of) == token && stream.phase == Phase::Before => {
                stream.phase = Phase::Open;
            }
            Entry::Shut { token: of } if Some(of) == token && !protocol.is(TailFlaw::CloseUnseen) => {
                stream.phase = Phase::Over;
            }
            _ if !is_counted => {}
            Entry::PreparedCommitted if !protocol.is(TailFlaw::PreparedForgotten) => stream.phase = Phase::Over,
            Entry::Inserted(id) | Entry::PutBack(id) => {
                stream.held.remove(id);
                if !stream.known.contains(id) {
                    stream.known.insert(id);
                    let Holding::Tail { mark, .. } = self.holding else { return };
                    self.arrive(protocol, [id].into_iter().collect(), mark);
                }
            }
            Entry::Settled { claim, removed, delayed, successor } => {
                stream.known = stream.known.without(removed);
                stream.late = stream.late.without(removed);
                stream.held = stream.held.union(delayed);
                stream.failed = stream.failed.without(delayed);
                if own == Some(claim) && !protocol.is(TailFlaw::RowKept) {
                    // The event is the reply.
                    self.outcomes.remove(removed);
                    self.unsure = None;
                    self.succeed(protocol, successor);
                }
            }
            Entry::Renewed { claim, token: of } if Some(of) == token && protocol.is(TailFlaw::RenewalIsEnd) => {
                stream.renewed = claim;
            }
            Entry::Begun { .. } | Entry::Shut { .. } | Entry::PreparedCommitted | Entry::Renewed { .. } => {}
        }
    }

    /// Takes rows, or puts them behind others of their keys. Rows of a key come in their order.
    fn arrive(&mut self, protocol: &Tail, rows: Ids, mark: u64) {
        let Some(stream) = &mut self.stream else { return };
        self.seen = self.seen.max(rows.last().unwrap_or(0));
        if stream.phase == Phase::Over {
            return;
        }
        for id in rows.iter() {
            if id > mark && !protocol.is(TailFlaw::AboveMark) {
                stream.late.insert(id);
                continue;
            }
            let held = stream.held.union(stream.failed).union(self.outcomes.delayed);
            if !held.iter().any(|first| first < id && protocol.key(first) == protocol.key(id)) {
                self.ready.insert(id);
            } else if !protocol.is(TailFlaw::ArrivalsLeft) {
                self.outcomes.delayed.insert(id);
            }
        }
    }

    /// Messages that may be handed to the broker: the first of each key in memory.
    pub(super) fn sendable(&self, protocol: &Tail) -> Ids {
        let open = self.in_flight();
        let is_first = |id: &u64| open.iter().all(|other| other >= *id || protocol.key(other) != protocol.key(*id));
        if self.lasts { self.ready.iter().filter(is_first).collect() } else { Ids::default() }
    }

    pub(super) fn confirmed(&mut self, id: u64) {
        self.on_the_way.remove(id);
        self.outcomes.sent.insert(id);
    }

    /// A failure delays the message, and the later ones of its key in memory.
    pub(super) fn failed(&mut self, protocol: &Tail, id: u64) {
        self.on_the_way.remove(id);
        let behind = self.ready.both(protocol.of_keys([id].into_iter().collect()));
        self.ready = self.ready.without(behind);
        self.outcomes.delayed = self.outcomes.delayed.union(behind);
        self.outcomes.delayed.insert(id);
    }

    /// The settlement that can be written now.
    pub(super) fn settlement(&self, protocol: &Tail, db: &Database) -> Option<Settle> {
        let open = self.in_flight();
        let (claim, next) = match self.holding {
            Holding::Tail { claim, is_open: false, .. } => {
                let is_free = db.is_alone() || protocol.is(TailFlaw::ListsBeside);
                if self.texts.iter().any(Settle::is_end) || !is_free {
                    return None;
                }
                (claim, Next::Open(self.seen + protocol.ahead))
            }
            Holding::Tail { claim, mark, .. } => {
                let has_late = self.stream.as_ref().is_some_and(|stream| !stream.late.is_empty());
                if self.texts.iter().any(Settle::is_end) || self.outcomes.all().is_empty() && !has_late {
                    return None;
                }
                (claim, Next::Tail(mark.max(self.seen + protocol.ahead)))
            }
            Holding::List { claim, .. } if open.is_empty() => (claim, Next::End),
            Holding::List { claim, .. } if !self.outcomes.all().is_empty() => (claim, Next::List(open)),
            _ => return None,
        };
        Some(Settle { claim, text: self.texts.len() as u64, outcomes: self.outcomes, next })
    }

    /// Ends a tail: what is in flight becomes a list, and outcomes are written.
    pub(super) fn ending(&self) -> Option<Settle> {
        let Holding::Tail { claim, .. } = self.holding else { return None };
        let open = self.in_flight();
        let next = if open.is_empty() { Next::End } else { Next::List(open) };
        Some(Settle { claim, text: self.texts.len() as u64, outcomes: self.outcomes, next })
    }

    /// A settlement was executed, by its reply.
    pub(super) fn settled(&mut self, protocol: &Tail, settle: &Settle) {
        self.outcomes.remove(settle.outcomes.all());
        if let Some(stream) = &mut self.stream {
            let is_shown = stream.renewed == settle.claim;
            if !is_shown && !protocol.is(TailFlaw::KeysForgotten) {
                stream.failed = stream.failed.union(settle.outcomes.delayed);
            }
            if protocol.is(TailFlaw::IdsForgotten) {
                stream.known = stream.known.without(settle.outcomes.all());
            }
        }
    }

    /// Goes on with the claim that has its token.
    pub(super) fn adopt(&mut self, protocol: &Tail, claim: Option<&Claim>) {
        let successor = claim.map(|claim| Successor { claim: claim.id, kind: claim.kind, mark: claim.mark });
        self.succeed(protocol, successor);
    }

    fn succeed(&mut self, protocol: &Tail, successor: Option<Successor>) {
        self.texts.clear();
        let Some(token) = self.token() else { return };
        match successor {
            Some(Successor { claim, kind: Kind::List, .. }) => {
                if matches!(self.holding, Holding::Tail { .. }) {
                    self.stream = None;
                }
                self.holding = Holding::List { claim, token };
            }
            Some(Successor { claim, kind, mark }) => {
                let was_open = matches!(self.holding, Holding::Tail { is_open: true, .. });
                self.holding = Holding::Tail { claim, token, mark, is_open: was_open || kind != Kind::Forming };
                if let Some(stream) = self.stream.as_mut().filter(|_| !was_open && kind == Kind::Open) {
                    stream.is_read = protocol.is(TailFlaw::PendingUnread);
                }
                let Some(stream) = &mut self.stream else { return };
                if kind == Kind::Closed {
                    stream.phase = Phase::Over;
                }
                let late = std::mem::take(&mut stream.late);
                self.arrive(protocol, late, mark);
            }
            None => self.forget(),
        }
    }

    /// Drops everything: the claim is gone.
    fn forget(&mut self) {
        if !matches!(self.holding, Holding::List { .. }) {
            self.stream = None;
        }
        (self.holding, self.lasts, self.has_slept) = (Holding::Nothing, false, false);
        (self.ready, self.on_the_way, self.outcomes) = (Ids::default(), Ids::default(), Outcomes::default());
        self.unsure = None;
    }
}
