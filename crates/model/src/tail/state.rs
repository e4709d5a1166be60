//! The whole state, and the effects of the actions.

use super::{
    Tail, TailFlaw,
    actions::Action,
    database::{Claim, Database, Request, Settle},
    relay::{Holding, Relay, Rows},
};
use crate::ids::Ids;

/// The last step's effect, if a property depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum Event {
    #[default]
    None,
    Duplicate,
    /// A message arrived twice that was not announced.
    Unannounced,
    OutOfOrder,
    Adopted,
    Listed,
    PutBackUnderTail,
    /// A settlement wrote about rows that its claim does not have.
    Unfenced,
}

/// The whole state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) db: Database,
    pub(super) relays: Vec<Relay>,
    pub(super) requests: Vec<Request>,
    pub(super) astray: Ids,
    pub(super) delivered: Ids,
    pub(super) event: Event,
    pub(super) faults: u8,
    pub(super) tokens: u64,
    /// The closed claim, its token, and the rows that are to be its list.
    pub(super) closing: Option<(u64, u64, Ids)>,
    /// Messages that were taken over, or of which the broker gave no answer: only these may arrive twice.
    pub(super) announced: Ids,
}

impl State {
    pub(super) fn new(protocol: &Tail) -> Self {
        Self {
            db: Database { low: protocol.last() + 1, ..Database::default() },
            relays: (0..protocol.relays)
                .map(|at| Relay { is_earlier: protocol.has_earlier && at == 0, ..Relay::default() })
                .collect(),
            requests: Vec::new(),
            astray: Ids::default(),
            delivered: Ids::default(),
            event: Event::None,
            faults: protocol.faults,
            tokens: 0,
            closing: None,
            announced: Ids::default(),
        }
    }

    pub(super) fn apply(&mut self, protocol: &Tail, action: &Action) {
        self.event = Event::None;
        match *action {
            Action::Insert(id) => self.db.insert(protocol, id),
            Action::Prepare(id) => {
                self.db.open.remove(id);
                self.db.prepared.insert(id);
            }
            Action::Commit(id) => self.db.commit(protocol, id),
            Action::Show => self.db.show(),
            Action::RollBack(id) => {
                self.db.open.remove(id);
                self.db.rolled_back.insert(id);
            }
            Action::Execute(request) => match self.requests.remove(request) {
                Request::Settle(settle) => drop(self.execute(protocol, &settle)),
                Request::Make { token } => drop(self.db.form(protocol, token)),
            },
            Action::Arrive(id) => {
                self.astray.remove(id);
                self.deliver(protocol, id);
            }
            Action::PutBack(id) => {
                if self.db.tail().is_some() {
                    self.event = Event::PutBackUnderTail;
                }
                self.db.put_back(id);
            }
            Action::Close => self.db.close(protocol),
            Action::ReadClosed => {
                let rows = self.db.pending.without(self.db.listed());
                let claim = self.db.tail().map(|it| (it.id, it.token, it.mark));
                self.closing =
                    claim.map(|(id, token, mark)| (id, token, rows.iter().filter(|id| *id <= mark).collect()));
            }
            Action::ListClosed => {
                if let Some((claim, token, rows)) = self.closing.take() {
                    self.db.list(protocol, claim, token, rows);
                    self.event = Event::Listed;
                }
            }
            Action::Drop(claim) => self.drop_tail(protocol, claim, true),
            Action::DropByEarlier(claim) => self.drop_tail(protocol, claim, false),
            Action::Unseal => self.db.unseal(protocol, true),
            Action::Expire(claim) => self.expire(claim, true),
            Action::ExpireUnseen(claim) => self.expire(claim, false),
            Action::TakeOver(claim) => {
                self.db.show();
                if let Some(claim) = self.db.delete(claim) {
                    self.db.suspects = self.db.suspects.union(claim.messages.both(self.db.pending));
                    self.announced = self.announced.union(claim.messages);
                }
            }
            _ => self.relay(protocol, action),
        }
    }

    fn relay(&mut self, protocol: &Tail, action: &Action) {
        let Self { db, relays, requests, .. } = self;
        match *action {
            Action::Read(at) => with(relays, at, |relay| relay.read(db)),
            Action::Begin(at) => with(relays, at, |relay| relay.begin(protocol, &db.log)),
            Action::Next(at) => with(relays, at, |relay| {
                let before = relay.on_the_way;
                relay.next(protocol, &db.log);
                self.astray = self.astray.union(before.without(relay.on_the_way));
            }),
            Action::Break(at) => with(relays, at, |relay| relay.stream = None),
            Action::List(at) | Action::Make(at) | Action::LoseMakeReply(at) => self.claim(protocol, at, action),
            Action::Send(at, id) => with(relays, at, |relay| {
                relay.ready.remove(id);
                relay.on_the_way.insert(id);
            }),
            Action::Confirm(at, id) => {
                with(relays, at, |relay| relay.confirmed(id));
                self.deliver(protocol, id);
            }
            Action::Refuse(at, id) => with(relays, at, |relay| relay.failed(protocol, id)),
            Action::TimeOut(at, id) => {
                with(relays, at, |relay| relay.failed(protocol, id));
                self.astray.insert(id);
                self.announced.insert(id);
            }
            Action::Renew(at) => self.renew(protocol, at),
            Action::Settle(at) | Action::End(at) => self.settle(protocol, at, matches!(action, Action::End(_))),
            Action::LoseSettleReply(at) | Action::LoseEndReply(at) => with(relays, at, |relay| {
                let is_end = matches!(action, Action::LoseEndReply(_));
                relay.unsure = if is_end { relay.ending() } else { relay.settlement(protocol, db) };
                requests.extend(relay.unsure.clone().map(Request::Settle));
                relay.texts.extend(relay.unsure.clone());
                if is_end {
                    relay.ends_taking(protocol);
                }
            }),
            Action::Ask(at) => self.ask(protocol, at),
            Action::Crash(at) => with(relays, at, |relay| {
                self.astray = self.astray.union(relay.on_the_way);
                *relay = Relay { looks: relay.looks, is_earlier: relay.is_earlier, ..Relay::default() };
            }),
            _ => {}
        }
    }

    /// Only its own release knows of seals.
    fn drop_tail(&mut self, protocol: &Tail, claim: u64, unseals: bool) {
        self.db.show();
        let rows = self.db.of_claim(claim);
        self.announced = self.announced.union(rows);
        self.db.suspects = self.db.suspects.union(rows.both(self.db.pending));
        self.db.delete(claim);
        self.db.unseal(protocol, unseals);
    }

    /// A relay without a claim makes one of what its look has found.
    fn claim(&mut self, protocol: &Tail, at: usize, action: &Action) {
        let Self { db, relays, requests, tokens, .. } = self;
        let Some(relay) = relays.get_mut(at) else { return };
        let Some(rows) = relay.found(protocol) else { return };
        *tokens += 1;
        let has_tail = rows.claims.iter().any(Claim::stands);
        match action {
            Action::List(_) if relay.is_earlier || !has_tail => list(db, relay, &rows, *tokens),
            Action::Make(_) if !has_tail => form(protocol, db, relay, *tokens),
            // It may be executed late, and is nobody's.
            Action::LoseMakeReply(_) if !has_tail => requests.push(Request::Make { token: *tokens }),
            _ => {}
        }
    }

    fn deliver(&mut self, protocol: &Tail, id: u64) {
        let is_missing =
            |other: u64| other < id && protocol.key(other) == protocol.key(id) && !self.delivered.contains(other);
        self.event = if self.delivered.contains(id) && self.announced.contains(id) {
            Event::Duplicate
        } else if self.delivered.contains(id) {
            Event::Unannounced
        } else if self.db.committed.iter().any(is_missing) {
            Event::OutOfOrder
        } else {
            Event::None
        };
        self.delivered.insert(id);
    }

    /// The owner's own clock ran ahead of the database's, unless it was suspended.
    fn expire(&mut self, claim: u64, is_seen: bool) {
        let Self { db, relays, .. } = self;
        let Some(claim) = db.claims.iter_mut().find(|it| it.id == claim) else { return };
        claim.expired = true;
        let token = Some(claim.token);
        for relay in relays.iter_mut().filter(|relay| relay.token() == token) {
            (relay.lasts, relay.has_slept) = (relay.lasts && !is_seen, !is_seen);
        }
    }

    fn renew(&mut self, protocol: &Tail, at: usize) {
        let Some(relay) = self.relays.get_mut(at) else { return };
        if relay.claim().is_some_and(|claim| self.db.renew(claim)) {
            relay.lasts = true;
        } else {
            self.go_on(protocol, at);
        }
    }

    fn settle(&mut self, protocol: &Tail, at: usize, is_end: bool) {
        let Some(relay) = self.relays.get(at) else { return };
        let Some(settle) = (if is_end { relay.ending() } else { relay.settlement(protocol, &self.db) }) else { return };
        let lasts = self.execute(protocol, &settle);
        self.answered(protocol, at, &settle);
        if let Some(relay) = self.relays.get_mut(at) {
            relay.lasts |= lasts && relay.token().is_some();
        }
    }

    /// Executes a settlement. Returns whether its claim was live.
    fn execute(&mut self, protocol: &Tail, settle: &Settle) -> bool {
        let pending = self.db.pending;
        let own = self.db.of_claim(settle.claim);
        let is_live = self.db.settle(protocol, settle);
        if !pending.without(self.db.pending).without(own).is_empty() {
            self.event = Event::Unfenced;
        }
        is_live
    }

    /// Finds out what became of a settlement without a reply.
    fn ask(&mut self, protocol: &Tail, at: usize) {
        let Some(settle) = self.relays.get_mut(at).and_then(|relay| relay.unsure.take()) else { return };
        let may_come = self.db.claims.iter().any(|claim| claim.id == settle.claim);
        if !may_come || self.db.receipts.contains(&settle.claim) {
            self.answered(protocol, at, &settle);
        }
    }

    /// This settlement or another one of the same claim is executed, or the claim is gone. A receipt names only the
    /// claim; the successor tells which text was executed. Texts without a successor have the same outcomes.
    fn answered(&mut self, protocol: &Tail, at: usize, settle: &Settle) {
        let token = self.relays.get(at).and_then(Relay::token);
        let found = token.and_then(|token| self.db.of_token(token));
        let is_done = self.db.receipts.contains(&settle.claim);
        with(&mut self.relays, at, |relay| {
            let texts = relay.texts.clone();
            let mut sent = texts.iter().chain([settle]).filter(|sent| sent.claim == settle.claim);
            let executed = match found {
                Some(_) if protocol.is(TailFlaw::TextsAlike) => Some(settle),
                Some(claim) => sent.find(|sent| sent.text == claim.text),
                // Without a successor nothing is in flight any more.
                None => None,
            };
            if let Some(executed) = executed.filter(|_| is_done) {
                relay.settled(protocol, executed);
            }
        });
        self.go_on(protocol, at);
    }

    /// A relay goes on with the claim that has its token, if there is one: a successor, or a list that another relay
    /// has made.
    fn go_on(&mut self, protocol: &Tail, at: usize) {
        let Some(relay) = self.relays.get_mut(at) else { return };
        let found = relay.token().and_then(|token| self.db.of_token(token));
        if found.is_none() {
            self.astray = self.astray.union(relay.on_the_way);
        } else if found.is_some_and(|claim| !claim.stands()) && matches!(relay.holding, Holding::Tail { .. }) {
            self.event = Event::Adopted;
        }
        relay.adopt(protocol, found);
    }
}

fn with(relays: &mut [Relay], at: usize, act: impl FnOnce(&mut Relay)) {
    if let Some(relay) = relays.get_mut(at) {
        act(relay);
    }
}

fn list(db: &mut Database, relay: &mut Relay, rows: &Rows, token: u64) {
    let messages: Ids = rows.free.iter().take(2).collect();
    if messages.is_empty() {
        return;
    }
    if let Some(claim) = db.claim((rows.version, rows.low), Claim::list(token, messages)) {
        (relay.holding, relay.lasts, relay.ready) = (Holding::List { claim, token }, true, messages);
    }
}

fn form(protocol: &Tail, db: &mut Database, relay: &mut Relay, token: u64) {
    if let Some(claim) = db.form(protocol, token) {
        (relay.holding, relay.lasts) = (Holding::Tail { claim, token, mark: 0, is_open: false }, true);
    }
}
