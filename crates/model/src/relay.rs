//! A relay: what it remembers, and its publisher with the relay's own chains and retry decision.

use std::time::Duration;

use outbox_relay::{
    pipeline::{
        claim::window::Start,
        publish::chains::{ChainEntry, Chains, Origin},
        retry::{self, Disposition, Policy},
    },
    settings::{AfterDead, OnRejected, RetryConfig},
    sink::PublishError,
};

use crate::{
    claimer::{self, Claimer, Look},
    database::{Claim, Database, Settlement},
    ids::Ids,
    protocol::{Flaw, Protocol},
};

/// The stage of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    Unread,
    Publishing,
    /// All messages have an outcome.
    Finished,
    /// The claim was settled and the reply was lost.
    Unsure,
}

/// A claim in the relay's memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Tenure {
    pub claim: u64,
    /// The claim's number in the chains: the smallest free one.
    pub slot: u64,
    pub pass: u64,
    pub messages: Ids,
    /// Whether the lease is still valid, by the relay's own clock.
    pub lasts: bool,
    pub stage: Stage,
    /// Messages without an outcome yet.
    pub open: Ids,
    pub settlement: Settlement,
    pub may_return: bool,
}

/// A relay process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Relay {
    pub owner: u8,
    pub claimer: Claimer,
    /// Claims of other relays, as far as they are known.
    pub foreign: Vec<Claim>,
    pub known: u64,
    pub gone: u64,
    pub start: Start,
    /// The pass that began last, and whether anything refers to it.
    pub pass: u64,
    pub pass_matters: bool,
    pub tenures: Vec<Tenure>,
    pub chains: Chains<u64>,
    /// Messages that may be published.
    pub ready: Ids,
    /// Messages in flight: the broker has not answered yet.
    pub on_the_way: Ids,
}

const POLICY: Policy = Policy {
    on_rejected: OnRejected::Dead,
    after_dead: AfterDead::Skip,
    retry: RetryConfig::new(Duration::from_secs(1), Duration::from_secs(1), usize::MAX),
};

impl Relay {
    /// What a new process knows.
    pub(crate) fn new(owner: u8) -> Self {
        Self { owner, ..Self::default() }
    }

    /// Looks: in one step, unless a flaw lets other actions in between. A look that begins leaves out this key.
    pub(crate) fn look(&mut self, protocol: &Protocol, db: &Database, without: u64) {
        let mut look = match std::mem::take(&mut self.claimer) {
            Claimer::Idle => {
                self.next_pass();
                claimer::begin(protocol, db, self, without)
            }
            Claimer::Looking(look) => look,
            other => {
                self.claimer = other;
                return;
            }
        };
        self.claimer = loop {
            if look.step(protocol, db, self) {
                break look.choose(protocol, db, self);
            }
            if look.is_interrupted(protocol.flaw) {
                break Claimer::Looking(look);
            }
        };
    }

    /// Remembers a live claim. A relay reads it at once if it is the only one: no decision can tell the difference.
    pub(crate) fn insert(&mut self, protocol: &Protocol, claim: &Claim) {
        let &Claim { id: claim, messages, expired, .. } = claim;
        let free = |slot: &u64| self.tenures.iter().all(|t| t.slot != *slot);
        let slot = (0..=self.tenures.len() as u64).find(free).unwrap_or_default();
        self.pass_matters = true;
        self.tenures.push(Tenure {
            claim,
            slot,
            pass: self.pass,
            messages,
            // The relay's own clock started before the database's.
            lasts: !expired,
            stage: Stage::Unread,
            open: messages,
            settlement: Settlement::default(),
            may_return: true,
        });
        if self.tenures.len() == 1 && !protocol.workers {
            self.accept(protocol);
        }
    }

    fn holder(&mut self, slot: u64) -> Option<&mut Tenure> {
        self.tenures.iter_mut().find(|tenure| tenure.slot == slot)
    }

    /// The claim of a message in flight.
    pub(crate) fn of_message(&self, id: u64) -> Option<&Tenure> {
        self.tenures.iter().find(|t| t.stage == Stage::Publishing && t.open.contains(id))
    }

    fn origin(&self, protocol: &Protocol, id: u64) -> Option<Origin> {
        let tenure = self.of_message(id)?;
        Some(Origin { key: (0, protocol.key(id)), lease: claimer::lease(tenure.slot), pass: tenure.pass, id })
    }

    /// Accepts the oldest unread claim.
    pub(crate) fn accept(&mut self, protocol: &Protocol) {
        let Some(tenure) = self.tenures.iter_mut().find(|t| t.stage == Stage::Unread) else { return };
        tenure.stage = Stage::Publishing;
        let slot = tenure.slot;
        let messages = tenure.messages;
        for id in messages.iter() {
            let Some(origin) = self.origin(protocol, id) else { continue };
            match self.chains.admit(origin, true, id) {
                ChainEntry::Go(id) => self.ready.insert(id),
                ChainEntry::Queued => {}
                ChainEntry::Blocked(id, fate) => self.finish(protocol, slot, id, &fate),
            }
        }
    }

    /// Gives back a claim that was not accepted.
    pub(crate) fn release(&mut self, claim: u64) {
        for tenure in self.tenures.iter_mut().filter(|t| t.claim == claim && t.stage == Stage::Unread) {
            (tenure.stage, tenure.open) = (Stage::Finished, Ids::default());
        }
    }

    /// Hands a ready message to the sink if its claim's lease is still valid. Returns whether it was.
    pub(crate) fn send(&mut self, protocol: &Protocol, id: u64) -> bool {
        self.ready.remove(id);
        let lasts = self.of_message(id).is_some_and(|tenure| tenure.lasts);
        if lasts {
            self.on_the_way.insert(id);
        } else {
            self.fail(protocol, id, &Disposition::Release);
        }
        lasts
    }

    /// The broker has the message.
    pub(crate) fn confirmed(&mut self, protocol: &Protocol, id: u64) {
        self.on_the_way.remove(id);
        let Some(origin) = self.origin(protocol, id) else { return };
        if let Some(tenure) = self.holder(origin.lease.claim_id) {
            tenure.settlement.sent.insert(id);
        }
        self.close(protocol, origin.lease.claim_id, id);
        self.advance(origin);
    }

    /// The broker does not have the message, or has not confirmed it.
    pub(crate) fn failed(&mut self, protocol: &Protocol, id: u64, error: &PublishError) {
        if protocol.flaw == Some(Flaw::TimeOutIsSent) && matches!(error, PublishError::Unconfirmed(_)) {
            return self.confirmed(protocol, id);
        }
        self.on_the_way.remove(id);
        self.fail(protocol, id, &retry::decide(error, 0, POLICY, 1.0));
    }

    fn fail(&mut self, protocol: &Protocol, id: u64, disposition: &Disposition) {
        let Some(origin) = self.origin(protocol, id) else { return };
        match retry::behind(disposition) {
            Some(fate) if protocol.flaw != Some(Flaw::FailureHoldsNothing) => self.block(protocol, origin, &fate),
            _ => self.advance(origin),
        }
        self.finish(protocol, origin.lease.claim_id, id, disposition);
    }

    fn block(&mut self, protocol: &Protocol, origin: Origin, fate: &Disposition) {
        for id in self.chains.block(origin, fate) {
            let Some(origin) = self.origin(protocol, id) else { continue };
            self.chains.block(origin, fate);
            self.finish(protocol, origin.lease.claim_id, id, fate);
        }
    }

    fn advance(&mut self, origin: Origin) {
        if let Some(next) = self.chains.advance(origin.key) {
            self.ready.insert(next);
        }
    }

    fn finish(&mut self, protocol: &Protocol, slot: u64, id: u64, disposition: &Disposition) {
        let Some(tenure) = self.holder(slot) else { return };
        match disposition {
            Disposition::Release => {}
            Disposition::Delay { .. } | Disposition::Behind => tenure.settlement.delayed.insert(id),
            Disposition::Dead { .. } => tenure.settlement.dead.insert(id),
        }
        self.close(protocol, slot, id);
    }

    /// The last outcome finishes the claim, and updates the claimer's record of it.
    fn close(&mut self, protocol: &Protocol, slot: u64, id: u64) {
        let Some(tenure) = self.holder(slot) else { return };
        tenure.open.remove(id);
        if !tenure.open.is_empty() {
            return;
        }
        tenure.stage = Stage::Finished;
        tenure.may_return = match protocol.flaw {
            Some(Flaw::FailedDoNotReturn) => tenure.settlement.all() != tenure.messages,
            _ => tenure.settlement.sent != tenure.messages,
        };
        let claim = tenure.claim;
        let may_return = tenure.may_return;
        if let Claimer::Looking(Look { own, .. }) = &mut self.claimer {
            own.iter_mut().filter(|own| own.claim == claim).for_each(|own| own.may_return = may_return);
        }
    }

    /// The claim is deleted.
    pub(crate) fn settled(&mut self, protocol: &Protocol, claim: u64) {
        let Some(at) = self.tenures.iter().position(|t| t.claim == claim) else { return };
        let tenure = self.tenures.remove(at);
        let pass = if protocol.flaw == Some(Flaw::PassForgotten) { 0 } else { self.pass };
        self.chains.settled(claimer::lease(tenure.slot), pass);
        self.pass_matters = true;
    }

    /// Begins a pass. It keeps the last number if nothing refers to that: no decision can tell the difference.
    pub(crate) fn next_pass(&mut self) {
        if self.pass_matters {
            self.pass += 1;
            self.pass_matters = false;
        }
    }

    /// Without a claim and between passes, nothing in the publisher's memory matters.
    pub(crate) fn rest(&mut self) {
        if self.tenures.is_empty() && self.claimer == Claimer::Idle {
            self.chains = Chains::default();
            (self.pass, self.pass_matters) = (0, true);
        }
    }
}
