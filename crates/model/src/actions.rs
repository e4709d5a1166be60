//! The actions that are possible next.

use crate::{
    claimer::Claimer,
    protocol::{Flaw, Protocol},
    relay::Stage,
    state::{Action, State},
};

impl Action {
    /// Whether the action is a fault: the number of faults is limited.
    pub(crate) fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::RollBack(_)
                | Self::LoseClaimReply(_)
                | Self::TimeOut(..)
                | Self::Refuse(..)
                | Self::LoseSettleReply(..)
                | Self::LoseRenewReply(..)
                | Self::Expire(_)
                | Self::Crash(_)
        )
    }
}

/// A service takes the lock of the business row before it inserts: a key has one open transaction.
pub(crate) fn services(protocol: &Protocol, state: &State, actions: &mut Vec<Action>) {
    let db = &state.db;
    let next = db.inserted().last().unwrap_or(0) + 1;
    if next <= protocol.last() && protocol.before(next).both(db.open).is_empty() {
        actions.push(Action::Insert(next));
    }
    for id in db.open.iter() {
        actions.push(Action::Commit(id));
        if state.faults > 0 {
            actions.push(Action::RollBack(id));
        }
    }
}

pub(crate) fn database(protocol: &Protocol, state: &State, actions: &mut Vec<Action>) {
    for claim in &state.db.claims {
        if !claim.expired && state.faults > 0 {
            actions.push(Action::Expire(claim.id));
        }
        // A relay does not take over its own claims.
        let foreign = state.relays.iter().any(|relay| relay.tenures.iter().all(|t| t.claim != claim.id));
        if foreign && (claim.expired || protocol.flaw == Some(Flaw::TakeOverAtOnce)) {
            actions.push(Action::TakeOver(claim.id));
        }
    }
    actions.extend(state.db.delayed.iter().map(Action::Promote));
    actions.extend((0..state.requests.len()).map(Action::Execute));
    actions.extend(state.astray.iter().map(Action::Arrive));
}

pub(crate) fn relay(protocol: &Protocol, state: &State, at: usize, actions: &mut Vec<Action>) {
    let (Some(relay), faults) = (state.relays.get(at), state.faults > 0) else { return };
    match &relay.claimer {
        Claimer::Idle if relay.tenures.len() < protocol.claims => {
            actions.push(Action::Look(at));
            if protocol.looks_past {
                actions.push(Action::LookPast(at));
            }
        }
        Claimer::Idle => {}
        Claimer::Looking(_) => actions.push(Action::Look(at)),
        Claimer::Claiming(_) => {
            actions.push(Action::Claim(at));
            if faults {
                actions.push(Action::LoseClaimReply(at));
            }
        }
        Claimer::Finding(_) => actions.push(Action::FindClaim(at)),
    }
    actions.extend(relay.ready.iter().map(|id| Action::Send(at, id)));
    for id in relay.on_the_way.iter() {
        actions.push(Action::Confirm(at, id));
        if faults {
            actions.extend([Action::TimeOut(at, id), Action::Refuse(at, id)]);
        }
    }
    if relay.tenures.iter().any(|tenure| tenure.stage == Stage::Unread) {
        actions.push(Action::Accept(at));
    }
    tenures(protocol, state, at, actions);
    if faults {
        actions.push(Action::Crash(at));
    }
}

fn tenures(protocol: &Protocol, state: &State, at: usize, actions: &mut Vec<Action>) {
    for tenure in state.relays.get(at).iter().flat_map(|relay| &relay.tenures) {
        let claim = tenure.claim;
        match tenure.stage {
            Stage::Finished => {
                actions.push(Action::Settle(at, claim));
                if state.faults > 0 {
                    actions.push(Action::LoseSettleReply(at, claim));
                }
            }
            Stage::Unsure => actions.push(Action::AskSettled(at, claim)),
            Stage::Unread | Stage::Publishing => {
                if protocol.workers && tenure.stage == Stage::Unread {
                    actions.push(Action::Release(at, claim));
                }
                let stands = state.db.claims.iter().any(|c| c.id == claim);
                if !tenure.lasts && (stands || protocol.flaw == Some(Flaw::RenewWithoutToken)) {
                    actions.push(Action::Renew(at, claim));
                    if state.faults > 0 {
                        actions.push(Action::LoseRenewReply(at, claim));
                    }
                }
            }
        }
    }
}
