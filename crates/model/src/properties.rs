//! Properties that always hold, and those that must hold sometimes (a model in which nothing goes wrong proves
//! nothing).

use stateright::Property;

use crate::{
    ids::Ids,
    protocol::{Event, Protocol},
    relay::Stage,
    state::State,
};

pub(crate) fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always("I1 no loss", |_, state: &State| {
            let db = &state.db;
            let visible = db.pending.union(db.delayed).union(db.dead);
            db.committed.without(visible.union(state.delivered)).is_empty()
        }),
        Property::always("I1 one state", |_, state: &State| {
            let db = &state.db;
            [db.pending.both(db.delayed), db.pending.both(db.dead), db.delayed.both(db.dead)] == [Ids::default(); 3]
        }),
        Property::always("I2 no phantom", |_, state: &State| state.delivered.without(state.db.committed).is_empty()),
        Property::always("I4 no duplicate without a fault", |protocol: &Protocol, state: &State| {
            state.event != Event::Duplicate || state.faults < protocol.faults
        }),
        Property::always("I5 order", |_, state: &State| state.event != Event::OutOfOrder),
        Property::always("I5 one claimer of a key", one_claimer),
        Property::always("I7 one claim of a message", one_claim),
        Property::always("I7 fence", |_, state: &State| state.event != Event::Unfenced),
        Property::always("I7 lease", leases_stand),
        Property::sometimes("a duplicate", |_, state: &State| state.event == Event::Duplicate),
        Property::sometimes("a take-over", |_, state: &State| state.event == Event::TakenOver),
        Property::sometimes("a fenced settle", |_, state: &State| state.event == Event::Fenced),
        Property::sometimes("a late commit delivered", |_, state: &State| state.event == Event::Late),
        Property::sometimes("a retry", |_, state: &State| state.event == Event::Retried),
        Property::sometimes("everything delivered and settled", |protocol: &Protocol, state: &State| {
            let db = &state.db;
            state.delivered.len() == protocol.keys.len()
                && db.pending.union(db.delayed).is_empty()
                && db.claims.is_empty()
        }),
    ]
}

/// No two relays have claims with the same key, and no worker has two.
fn one_claimer(protocol: &Protocol, state: &State) -> bool {
    let claims = &state.db.claims;
    claims.iter().enumerate().all(|(i, claim)| {
        let keys = protocol.keys_of(claim.messages);
        let shares = |id| keys.contains(&protocol.key(id));
        let may_share = |other: u8| other == claim.owner && !protocol.workers;
        claims.iter().skip(i + 1).all(|other| may_share(other.owner) || !other.messages.iter().any(shares))
    })
}

/// No two claims have a message in common.
fn one_claim(_: &Protocol, state: &State) -> bool {
    let mut claimed = Ids::default();
    state.db.claims.iter().all(|claim| {
        let again = claimed.both(claim.messages);
        claimed = claimed.union(claim.messages);
        again.is_empty()
    })
}

/// A relay that may start to publish holds the claim.
fn leases_stand(_: &Protocol, state: &State) -> bool {
    let mut tenures = state.relays.iter().flat_map(|relay| &relay.tenures);
    tenures.all(|tenure| {
        let starts = tenure.lasts && matches!(tenure.stage, Stage::Unread | Stage::Publishing);
        !starts || state.db.claims.iter().any(|claim| claim.id == tenure.claim && !claim.expired)
    })
}
