//! The invariants, and what must be reached.

use stateright::Property;

use super::{
    Tail,
    database::{Claim, Kind},
    relay::{Holding, Relay},
    state::{Event, State},
    stream::Phase,
};
use crate::ids::Ids;

pub(super) fn all() -> Vec<Property<Tail>> {
    vec![
        Property::always("no loss", |_, state: &State| {
            let known = state.db.pending.union(state.db.unseen).union(state.db.delayed).union(state.delivered);
            state.db.committed.without(known).is_empty()
        }),
        Property::always("no phantom", |_, state: &State| state.delivered.without(state.db.committed).is_empty()),
        Property::always("order", |_, state: &State| state.event != Event::OutOfOrder),
        Property::always("no duplicate unannounced", |_, state: &State| state.event != Event::Unannounced),
        Property::always("no row overlooked", no_row_overlooked),
        Property::always("memory", memory_is_complete),
        Property::always("fence", |_, state: &State| state.event != Event::Unfenced),
        Property::always("lease", leases_stand),
        Property::always("one holder", one_holder),
        Property::always("suspects in lists", suspects_in_lists),
        Property::sometimes("a list in place of a tail", |_, state: &State| state.event == Event::Listed),
        Property::sometimes("a list that its owner finds", |_, state: &State| state.event == Event::Adopted),
        Property::sometimes("a duplicate", |_, state: &State| state.event == Event::Duplicate),
        Property::sometimes("a retry under a tail", |_, state: &State| state.event == Event::PutBackUnderTail),
        Property::sometimes("everything delivered and settled", |protocol: &Tail, state: &State| {
            state.delivered.len() == protocol.keys.len()
                && state.db.pending.union(state.db.delayed).is_empty()
                && state.db.claims.is_empty()
        }),
    ]
}

/// A pending row that a relay does not look at is announced by `low`.
fn no_row_overlooked(_: &Tail, state: &State) -> bool {
    let overlooks = |relay: &Relay| state.db.pending.iter().any(|id| id <= relay.start && state.db.low > id);
    !state.relays.iter().any(overlooks)
}

/// An owner that has applied all events knows what becomes of each pending row: nothing else reads it while the tail
/// lasts.
fn memory_is_complete(_: &Tail, state: &State) -> bool {
    let is_open =
        |relay: &&Relay| state.db.claims.iter().any(|it| Some(it.token) == relay.token() && it.kind == Kind::Open);
    state.relays.iter().filter(is_open).all(|relay| {
        relay.stream.as_ref().is_none_or(|stream| {
            let is_current = stream.is_read && stream.phase == Phase::Open && stream.at == state.db.log.len();
            let known = relay.in_flight().union(relay.outcomes.all()).union(stream.late);
            !is_current || state.db.pending.without(known).is_empty()
        })
    })
}

/// Whatever a relay may send is barred for all others: by its tail, or by a list of its token.
fn leases_stand(_: &Tail, state: &State) -> bool {
    state.relays.iter().filter(|relay| relay.lasts && !relay.has_slept).all(|relay| {
        relay.ready.iter().all(|id| {
            let bars = |claim: &Claim| {
                let is_own = Some(claim.token) == relay.token() && !claim.expired;
                is_own
                    && (claim.kind == Kind::List && claim.messages.contains(id) || claim.stands() && id <= claim.mark)
            };
            state.db.claims.iter().any(bars)
        })
    })
}

/// No message is in the hands of two relays whose leases last.
fn one_holder(_: &Tail, state: &State) -> bool {
    let mut held = Ids::default();
    state.relays.iter().filter(|relay| relay.lasts && !relay.has_slept).all(|relay| {
        let open = relay.ready.union(relay.on_the_way);
        let is_alone = held.both(open).is_empty();
        held = held.union(open);
        is_alone
    })
}

/// A message that was taken over is sent only under a claim that names it.
fn suspects_in_lists(_: &Tail, state: &State) -> bool {
    let stands = |relay: &&Relay| relay.lasts && !relay.has_slept && matches!(relay.holding, Holding::Tail { .. });
    state.relays.iter().filter(stands).all(|relay| relay.ready.both(state.db.suspects).is_empty())
}
