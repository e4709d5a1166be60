//! The actions that are possible next.

use super::{
    Tail, TailFlaw,
    database::Kind,
    relay::Holding,
    state::{Action, State},
};

impl Action {
    /// Whether the action is a fault: their number is limited.
    pub(super) fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::LoseMakeReply(_)
                | Self::Refuse(..)
                | Self::TimeOut(..)
                | Self::LoseSettleReply(_)
                | Self::LoseEndReply(_)
                | Self::Expire(_)
                | Self::ExpireUnseen(_)
                | Self::RollBack(_)
                | Self::Break(_)
                | Self::Crash(_)
        )
    }
}

/// A service takes the lock of the business row before it inserts: a key has one open transaction.
pub(super) fn services(protocol: &Tail, state: &State, actions: &mut Vec<Action>) {
    let db = &state.db;
    let next = db.inserted().last().unwrap_or(0) + 1;
    if next <= protocol.last() && db.unfinished().iter().all(|id| protocol.key(id) != protocol.key(next)) {
        actions.push(Action::Insert(next));
    }
    actions.extend(db.unfinished().iter().map(Action::Commit));
    if !db.unseen.is_empty() {
        actions.push(Action::Show);
    }
    if protocol.has_prepared {
        actions.extend(db.open.iter().map(Action::Prepare));
    }
    if state.faults > 0 {
        actions.extend(db.open.iter().map(Action::RollBack));
    }
}

pub(super) fn database(protocol: &Tail, state: &State, actions: &mut Vec<Action>) {
    let db = &state.db;
    for claim in &db.claims {
        if !claim.expired && state.faults > 0 {
            actions.extend([Action::Expire(claim.id), Action::ExpireUnseen(claim.id)]);
        }
        if claim.kind == Kind::List && claim.expired {
            actions.push(Action::TakeOver(claim.id));
        }
        if claim.kind == Kind::Closed && claim.expired {
            actions.push(Action::Drop(claim.id));
        }
        if claim.kind == Kind::Open {
            actions.push(Action::Close);
            if claim.expired && protocol.has_earlier {
                actions.push(Action::DropByEarlier(claim.id));
            }
        }
        let is_early = claim.kind == Kind::Open && protocol.is(TailFlaw::ListedBeforeClose);
        if (claim.kind == Kind::Closed || is_early) && state.closing.is_none() {
            actions.push(Action::ReadClosed);
        }
    }
    if state.closing.is_some() {
        actions.push(Action::ListClosed);
    }
    if db.is_sealed && db.tail().is_none() {
        actions.push(Action::Unseal);
    }
    actions.extend(db.delayed.iter().map(Action::PutBack));
    actions.extend((0..state.requests.len()).map(Action::Execute));
    actions.extend(state.astray.iter().map(Action::Arrive));
}

pub(super) fn relay(protocol: &Tail, state: &State, at: usize, actions: &mut Vec<Action>) {
    let (Some(relay), faults) = (state.relays.get(at), state.faults > 0) else { return };
    match (&relay.look, &relay.holding) {
        (None, Holding::Nothing) if relay.looks < protocol.looks => actions.push(Action::Read(at)),
        (Some(_), Holding::Nothing) => {
            actions.push(Action::List(at));
            if !relay.is_earlier {
                actions.push(Action::Make(at));
                if faults {
                    actions.push(Action::LoseMakeReply(at));
                }
            }
        }
        _ => {}
    }
    if let (Some(stream), Holding::Tail { .. }) = (&relay.stream, &relay.holding) {
        match &relay.look {
            Some(_) => actions.push(Action::Begin(at)),
            None if !stream.is_read => actions.push(Action::Read(at)),
            None => {}
        }
        let is_next = stream.is_read || protocol.is(TailFlaw::EventsBeforeRead);
        if is_next && stream.at < state.db.log.len() {
            actions.push(Action::Next(at));
        }
        if faults {
            actions.push(Action::Break(at));
        }
    }
    if let Holding::Finding { .. } = relay.holding {
        actions.push(Action::Find(at));
    }
    actions.extend(relay.sendable(protocol).iter().map(|id| Action::Send(at, id)));
    for id in relay.on_the_way.iter() {
        actions.push(Action::Confirm(at, id));
        if faults {
            actions.extend([Action::Refuse(at, id), Action::TimeOut(at, id)]);
        }
    }
    claims(protocol, state, at, actions);
    if faults {
        actions.push(Action::Crash(at));
    }
}

fn claims(protocol: &Tail, state: &State, at: usize, actions: &mut Vec<Action>) {
    let (Some(relay), faults) = (state.relays.get(at), state.faults > 0) else { return };
    if relay.unsure.is_some() {
        actions.push(Action::Ask(at));
        return;
    }
    if relay.settlement(protocol).is_some() {
        actions.push(Action::Settle(at));
        if faults {
            actions.push(Action::LoseSettleReply(at));
        }
    }
    if relay.ending().is_some() {
        actions.push(Action::End(at));
        if faults {
            actions.push(Action::LoseEndReply(at));
        }
    }
    if !relay.lasts && relay.claim().is_some() {
        actions.push(Action::Renew(at));
    }
}
