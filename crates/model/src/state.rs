//! The whole state, the actions, and their effects.

use outbox_relay::sink::PublishError;

use crate::{
    claimer::Claimer,
    database::{Database, NewClaim, Request},
    ids::Ids,
    protocol::{Event, Flaw, Protocol},
    relay::{Relay, Stage},
};

/// An action. Relays are named by their index, messages and claims by their ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A service inserts a message and keeps its transaction open.
    Insert(u64),
    /// A service commits.
    Commit(u64),
    /// A service rolls back.
    RollBack(u64),
    /// The claimer begins to look, or executes its next statement.
    Look(usize),
    /// The same, and the look leaves out the messages of key 1.
    LookPast(usize),
    /// The compare-and-set of a claim, or of rows that are deferred.
    Claim(usize),
    /// The same, and the reply is lost.
    LoseClaimReply(usize),
    /// The claimer asks whether its claim is live.
    FindClaim(usize),
    /// The publisher accepts a claim.
    Accept(usize),
    /// A worker releases a claim that waits for its turn.
    Release(usize, u64),
    /// A message is handed to the sink, if the lease lasts.
    Send(usize, u64),
    /// The broker has the message and confirms it.
    Confirm(usize, u64),
    /// No answer in time: the message may arrive later.
    TimeOut(usize, u64),
    /// The broker certainly did not take the message.
    Refuse(usize, u64),
    /// A claim is settled.
    Settle(usize, u64),
    /// The same, and the reply is lost.
    LoseSettleReply(usize, u64),
    /// The settler asks whether the claim is settled.
    AskSettled(usize, u64),
    /// The lease of a claim runs out; its relay may be paused, or cut off from the database.
    Expire(u64),
    /// A relay renews a lease that ran out.
    Renew(usize, u64),
    /// The same, and the reply is lost: its relay goes by its own clock, and renews again.
    LoseRenewReply(usize, u64),
    /// A claim whose lease has run out is taken over.
    TakeOver(u64),
    /// A delayed message is due.
    Promote(u64),
    /// A process dies, and another starts in its place.
    Crash(usize),
    /// A text whose reply was lost is executed after all.
    Execute(usize),
    /// A message that the publisher got no answer for reaches the broker after all.
    Arrive(u64),
}

/// The whole state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) db: Database,
    pub(crate) relays: Vec<Relay>,
    /// Texts whose reply was lost and that may still be executed.
    pub(crate) requests: Vec<Request>,
    /// Messages that may still reach the broker, though no publisher waits for them.
    pub(crate) astray: Ids,
    pub(crate) delivered: Ids,
    pub(crate) event: Event,
    pub(crate) faults: u8,
    pub(crate) owners: u8,
    pub(crate) tokens: u8,
}

impl State {
    pub(crate) fn new(protocol: &Protocol) -> Self {
        let mut state = Self {
            db: Database::default(),
            relays: (0..protocol.relays).map(Relay::new).collect(),
            requests: Vec::new(),
            astray: Ids::default(),
            delivered: Ids::default(),
            event: Event::None,
            faults: protocol.faults,
            owners: protocol.relays,
            tokens: 0,
        };
        state.relays.iter_mut().for_each(Relay::rest);
        state
    }

    /// Executes the action.
    pub(crate) fn apply(&mut self, protocol: &Protocol, action: &Action) {
        self.event = Event::None;
        match action {
            Action::Insert(id) => self.db.open.insert(*id),
            Action::Commit(id) => self.db.commit(*id),
            Action::RollBack(id) => {
                self.db.open.remove(*id);
                self.db.rolled_back.insert(*id);
            }
            Action::Expire(claim) => self.expire(*claim),
            Action::TakeOver(claim) => {
                self.db.claims.retain(|c| c.id != *claim);
                self.event = Event::TakenOver;
            }
            Action::Promote(id) => {
                self.db.promote(*id, protocol.flaw);
                self.event = Event::Retried;
            }
            Action::Execute(request) => {
                let request = self.requests.remove(*request);
                self.event = self.db.execute(&request, protocol);
            }
            Action::Arrive(id) => {
                self.astray.remove(*id);
                self.deliver(protocol, *id);
            }
            Action::Crash(relay) => self.crash(*relay),
            Action::Confirm(relay, id) => {
                self.relay(*relay, |r| r.confirmed(protocol, *id));
                self.deliver(protocol, *id);
            }
            Action::TimeOut(relay, id) => {
                self.astray.insert(*id);
                self.relay(*relay, |r| r.failed(protocol, *id, &PublishError::Unconfirmed(String::new())));
            }
            Action::Refuse(relay, id) => {
                self.relay(*relay, |r| r.failed(protocol, *id, &PublishError::Unavailable(String::new())));
            }
            Action::Accept(relay) => self.relay(*relay, |r| r.accept(protocol)),
            Action::Release(relay, claim) => self.relay(*relay, |r| r.release(*claim)),
            Action::Send(relay, id) => self.relay(*relay, |r| {
                r.send(protocol, *id);
            }),
            Action::Look(relay) => self.look(protocol, *relay, 0),
            Action::LookPast(relay) => self.look(protocol, *relay, 1),
            Action::Claim(relay) => self.claim(protocol, *relay),
            Action::LoseClaimReply(relay) => self.lose_claim_reply(*relay),
            Action::FindClaim(relay) => self.find_claim(protocol, *relay),
            Action::Settle(relay, claim) => self.settle(protocol, *relay, *claim),
            Action::LoseSettleReply(relay, claim) => self.lose_settle_reply(*relay, *claim),
            Action::AskSettled(relay, claim) => self.ask_settled(protocol, *relay, *claim),
            Action::Renew(relay, claim) => self.renew(protocol, *relay, *claim),
            Action::LoseRenewReply(relay, claim) => self.lose_renew_reply(protocol, *relay, *claim),
        }
        self.relays.iter_mut().for_each(Relay::rest);
    }

    fn relay(&mut self, at: usize, act: impl FnOnce(&mut Relay)) {
        if let Some(relay) = self.relays.get_mut(at) {
            act(relay);
        }
    }

    fn deliver(&mut self, protocol: &Protocol, id: u64) {
        let after = |ids: Ids| ids.iter().any(|other| other > id);
        let of_key: Ids = self.delivered.iter().filter(|other| protocol.share_a_key(id, *other)).collect();
        self.event = if self.delivered.contains(id) {
            Event::Duplicate
        } else if after(of_key) {
            Event::OutOfOrder
        } else if after(self.delivered) {
            Event::Late
        } else {
            Event::Delivered
        };
        self.delivered.insert(id);
    }

    fn look(&mut self, protocol: &Protocol, at: usize, without: u64) {
        let Self { db, relays, .. } = self;
        let Some(relay) = relays.get_mut(at) else { return };
        relay.look(protocol, db, without);
    }

    fn claim(&mut self, protocol: &Protocol, at: usize) {
        let Self { db, relays, .. } = self;
        let Some(relay) = relays.get_mut(at) else { return };
        match std::mem::take(&mut relay.claimer) {
            Claimer::Claiming(new) => {
                db.claim(&new, protocol.flaw).iter().for_each(|claim| relay.insert(protocol, claim));
            }
            other => relay.claimer = other,
        }
    }

    fn lose_claim_reply(&mut self, at: usize) {
        self.tokens += 1;
        let Self { relays, requests, tokens, .. } = self;
        let Some(relay) = relays.get_mut(at) else { return };
        match std::mem::take(&mut relay.claimer) {
            Claimer::Claiming(new) => {
                let new = NewClaim { token: *tokens, ..new };
                requests.push(Request::Claim(new.clone()));
                relay.claimer = Claimer::Finding(new);
            }
            other => relay.claimer = other,
        }
    }

    fn find_claim(&mut self, protocol: &Protocol, at: usize) {
        let Self { db, relays, .. } = self;
        let Some(relay) = relays.get_mut(at) else { return };
        match std::mem::take(&mut relay.claimer) {
            Claimer::Finding(new) => {
                // A request that has not executed by now is void.
                db.version += 1;
                let made = db.claims.iter().filter(|claim| claim.token == new.token);
                made.for_each(|claim| relay.insert(protocol, claim));
            }
            other => relay.claimer = other,
        }
    }

    fn settle(&mut self, protocol: &Protocol, at: usize, claim: u64) {
        let Self { db, relays, event, .. } = self;
        let Some(relay) = relays.get_mut(at) else { return };
        let Some(tenure) = relay.tenures.iter().find(|t| t.claim == claim) else { return };
        *event = db.settle(claim, relay.owner, tenure.settlement, protocol.flaw);
        relay.settled(protocol, claim);
    }

    fn lose_settle_reply(&mut self, at: usize, claim: u64) {
        let Self { relays, requests, .. } = self;
        let Some(relay) = relays.get_mut(at) else { return };
        let Some(tenure) = relay.tenures.iter_mut().find(|t| t.claim == claim) else { return };
        tenure.stage = Stage::Unsure;
        requests.push(Request::Settle { claim, owner: relay.owner, settlement: tenure.settlement });
    }

    fn ask_settled(&mut self, protocol: &Protocol, at: usize, claim: u64) {
        let Self { db, relays, .. } = self;
        let Some(relay) = relays.get_mut(at) else { return };
        if db.marks.contains(&claim) {
            relay.settled(protocol, claim);
        } else if let Some(tenure) = relay.tenures.iter_mut().find(|t| t.claim == claim) {
            tenure.stage = Stage::Finished;
        }
    }

    /// The relay's own clock ran ahead of the database's: the relay starts nothing more.
    fn expire(&mut self, claim: u64) {
        self.db.claims.iter_mut().filter(|c| c.id == claim).for_each(|c| c.expired = true);
        let tenures = self.relays.iter_mut().flat_map(|relay| &mut relay.tenures);
        tenures.filter(|t| t.claim == claim).for_each(|t| t.lasts = false);
    }

    fn renew(&mut self, protocol: &Protocol, at: usize, claim: u64) {
        let renewed = self.db.renew(claim) || protocol.flaw == Some(Flaw::RenewWithoutToken);
        self.renewed(at, claim, renewed);
    }

    fn lose_renew_reply(&mut self, protocol: &Protocol, at: usize, claim: u64) {
        self.requests.push(Request::Renew(claim));
        self.renewed(at, claim, protocol.flaw == Some(Flaw::UnansweredRenewalCounts));
    }

    fn renewed(&mut self, at: usize, claim: u64, lasts: bool) {
        self.relay(at, |relay| {
            relay.tenures.iter_mut().filter(|t| t.claim == claim).for_each(|t| t.lasts = lasts);
        });
    }

    /// Messages that it handed over may still arrive. Another process starts in its place.
    fn crash(&mut self, at: usize) {
        let owner = self.owners;
        self.owners += 1;
        if let Some(relay) = self.relays.get_mut(at) {
            self.astray = self.astray.union(relay.on_the_way);
            *relay = Relay::new(owner);
        }
    }
}
