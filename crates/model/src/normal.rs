//! States that differ only in the numbers of their versions and claims are one state.

use crate::{
    claimer::Claimer,
    database::{Claim, Request},
    state::State,
};

/// Renumbers versions and claims in their order: decisions depend only on equal versions, and on which claim is newer.
pub(crate) fn normalise(state: &mut State) {
    forget(state);
    let mut numbers = Vec::new();
    versions(state, &mut |version| numbers.push(*version));
    rank(&mut numbers);
    versions(state, &mut |version| *version = place(&numbers, *version));
    numbers.clear();
    numbers.push(0);
    claims(state, &mut |claim| numbers.push(*claim));
    rank(&mut numbers);
    claims(state, &mut |claim| *claim = place(&numbers, *claim));
    state.db.next_claim = numbers.len() as u64 - 1;
    state.requests.sort_unstable_by_key(|request| format!("{request:?}"));
}

/// Drops what no relay can ask for any more.
fn forget(state: &mut State) {
    let State { db, relays, .. } = state;
    db.marks.retain(|mark| relays.iter().any(|relay| relay.tenures.iter().any(|t| t.claim == *mark)));
    db.marks.sort_unstable();
    for relay in relays {
        // Of the newest known or deleted claim, only its order among the live claims matters.
        let known = db.claims.iter().map(|claim| claim.id).filter(|id| *id <= relay.known);
        relay.known = known.max().unwrap_or(0);
        let gone = db.claims.iter().map(|claim| claim.id).filter(|id| *id <= relay.gone);
        relay.gone = gone.max().unwrap_or(0);
    }
}

fn rank(numbers: &mut Vec<u64>) {
    numbers.sort_unstable();
    numbers.dedup();
}

fn place(numbers: &[u64], number: u64) -> u64 {
    numbers.iter().position(|other| *other == number).map_or(0, |place| place as u64)
}

fn versions(state: &mut State, visit: &mut impl FnMut(&mut u64)) {
    visit(&mut state.db.version);
    for relay in &mut state.relays {
        match &mut relay.claimer {
            Claimer::Idle => {}
            Claimer::Looking(look) => visit(&mut look.version),
            Claimer::Claiming(new) | Claimer::Finding(new) => visit(&mut new.version),
        }
    }
    for request in &mut state.requests {
        if let Request::Claim(new) = request {
            visit(&mut new.version);
        }
    }
}

fn ids(claims: &mut [Claim]) -> impl Iterator<Item = &mut u64> {
    claims.iter_mut().map(|claim| &mut claim.id)
}

fn claims(state: &mut State, visit: &mut impl FnMut(&mut u64)) {
    ids(&mut state.db.claims).for_each(&mut *visit);
    state.db.marks.iter_mut().for_each(&mut *visit);
    for relay in &mut state.relays {
        visit(&mut relay.known);
        visit(&mut relay.gone);
        ids(&mut relay.foreign).for_each(&mut *visit);
        relay.tenures.iter_mut().for_each(|tenure| visit(&mut tenure.claim));
        if let Claimer::Looking(look) = &mut relay.claimer {
            ids(&mut look.claims).for_each(&mut *visit);
            look.own.iter_mut().for_each(|own| visit(&mut own.claim));
            look.claim_ids.iter_mut().for_each(&mut *visit);
        }
    }
    for request in &mut state.requests {
        match request {
            Request::Settle { claim, .. } | Request::Renew(claim) => visit(claim),
            Request::Claim(_) => {}
        }
    }
}
