//! The actions, and those that are possible next.

use super::{Tail, TailFlaw, database::Kind, relay::Holding, state::State};

/// An action. Relays are named by their index, messages and claims by their ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A service inserts a message and keeps its transaction open.
    Insert(u64),
    /// A service prepares its transaction (XA).
    Prepare(u64),
    /// A service commits.
    Commit(u64),
    /// Reads see what the log has shown.
    Show,
    /// A service rolls back.
    RollBack(u64),
    /// A look reads.
    Read(usize),
    /// The reply of a look arrives, and the relay begins its tail with these rows.
    Begin(usize),
    /// The stream shows the next event.
    Next(usize),
    /// The stream of a tail breaks.
    Break(usize),
    /// The reply of a look arrives, and the relay makes a list of its rows.
    List(usize),
    /// The reply of a look arrives, and the relay makes a tail, which is forming.
    Make(usize),
    /// The same, and the reply to that is lost.
    LoseMakeReply(usize),
    /// A message is handed to the broker.
    Send(usize, u64),
    /// The broker confirms it.
    Confirm(usize, u64),
    /// The broker has certainly not taken it.
    Refuse(usize, u64),
    /// No answer in time: it may arrive later.
    TimeOut(usize, u64),
    /// Outcomes are written.
    Settle(usize),
    /// The same, and the reply is lost.
    LoseSettleReply(usize),
    /// A relay ends its tail: a list follows, or nothing.
    End(usize),
    /// The same, and the reply is lost.
    LoseEndReply(usize),
    /// A relay asks for its settlement.
    Ask(usize),
    /// A relay renews its lease.
    Renew(usize),
    /// A relay closes the tail.
    Close,
    /// A relay reads the rows that the owner of the closed claim may have.
    ReadClosed,
    /// It turns the claim into a list of these rows.
    ListClosed,
    /// A closed claim whose lease has passed is deleted, because it has too many rows for a list.
    Drop(u64),
    /// A relay of an earlier release takes over a tail, as an empty list.
    DropByEarlier(u64),
    /// A relay finds that the lane is sealed without a tail.
    Unseal,
    /// The lease of a claim passes.
    Expire(u64),
    /// The same, and its owner is suspended: by its own clock no time has passed.
    ExpireUnseen(u64),
    /// A list whose lease has passed is taken over.
    TakeOver(u64),
    /// A delayed message is due.
    PutBack(u64),
    /// A process dies, and another starts in its place.
    Crash(usize),
    /// A text whose reply was lost is executed.
    Execute(usize),
    /// A message that got no answer reaches the broker after all.
    Arrive(u64),
}

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
        if matches!(claim.kind, Kind::Open | Kind::Forming) {
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
    if let (Some(stream), Holding::Tail { is_open: true, .. }) = (&relay.stream, &relay.holding) {
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
    if relay.settlement(protocol, &state.db).is_some() {
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
    let renews = protocol.has_renewals && relay.stream.is_some() && state.db.log.is_empty();
    if (!relay.lasts || renews) && relay.claim().is_some() {
        actions.push(Action::Renew(at));
    }
}
