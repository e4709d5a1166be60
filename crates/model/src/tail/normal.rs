//! States that differ only in the numbers of their versions, claims and tokens are one state.

use super::{
    database::{Claim, Request, Settle},
    relay::Holding,
    state::State,
    stream::Entry,
};

/// Shows all numbers of a kind.
type Visit = fn(&mut State, &mut dyn FnMut(&mut u64));

/// Forgets what no relay can ask for, and numbers the rest in its order: only equality matters.
pub(super) fn normalise(state: &mut State) {
    let State { db, relays, .. } = &mut *state;
    let mut shown = db.log.len();
    for stream in relays.iter().filter_map(|relay| relay.stream.as_ref()) {
        shown = shown.min(stream.at);
    }
    db.log.drain(..shown);
    relays.iter_mut().filter_map(|relay| relay.stream.as_mut()).for_each(|stream| stream.at -= shown);
    db.receipts.retain(|receipt| relays.iter().any(|relay| relay.claim() == Some(*receipt)));
    state.db.receipts.sort_unstable();
    for visit in [versions as Visit, claims, tokens] {
        let mut numbers = vec![0];
        visit(state, &mut |number| numbers.push(*number));
        numbers.sort_unstable();
        numbers.dedup();
        let place = |number: u64| numbers.iter().position(|other| *other == number).map_or(0, |at| at as u64);
        visit(state, &mut |number| *number = place(*number));
    }
    state.db.next_claim = 0;
    let mut last = 0;
    claims(state, &mut |claim| last = last.max(*claim));
    state.db.next_claim = last;
    let mut last = 0;
    tokens(state, &mut |token| last = last.max(*token));
    state.tokens = last;
    state.requests.sort_unstable();
    // No decision depends on which relay is the first.
    state.relays.sort_unstable();
}

fn versions(state: &mut State, visit: &mut dyn FnMut(&mut u64)) {
    visit(&mut state.db.version);
    state.relays.iter_mut().filter_map(|relay| relay.look.as_mut()).for_each(|look| visit(&mut look.version));
}

fn settlements(state: &mut State, mut visit: impl FnMut(&mut Settle)) {
    state.relays.iter_mut().flat_map(|relay| relay.unsure.iter_mut().chain(&mut relay.texts)).for_each(&mut visit);
    for request in &mut state.requests {
        if let Request::Settle(settle) = request {
            visit(settle);
        }
    }
}

/// All copies of rows of `outbox_claims`.
fn rows(state: &mut State, mut visit: impl FnMut(&mut Claim)) {
    state.db.claims.iter_mut().for_each(&mut visit);
    let looks = state.relays.iter_mut().filter_map(|relay| relay.look.as_mut());
    looks.flat_map(|look| &mut look.claims).for_each(visit);
}

fn claims(state: &mut State, visit: &mut dyn FnMut(&mut u64)) {
    rows(state, |claim| visit(&mut claim.id));
    state.db.receipts.iter_mut().for_each(&mut *visit);
    settlements(state, |settle| visit(&mut settle.claim));
    for entry in &mut state.db.log {
        match entry {
            Entry::Renewed { claim, .. } => visit(claim),
            Entry::Settled { claim, successor, .. } => {
                visit(claim);
                for it in successor.iter_mut() {
                    visit(&mut it.claim);
                }
            }
            _ => {}
        }
    }
    state.closing.iter_mut().for_each(|(claim, ..)| visit(claim));
    for relay in &mut state.relays {
        if let Holding::Tail { claim, .. } | Holding::List { claim, .. } = &mut relay.holding {
            visit(claim);
        }
        relay.stream.iter_mut().for_each(|stream| visit(&mut stream.renewed));
    }
}

fn tokens(state: &mut State, visit: &mut dyn FnMut(&mut u64)) {
    rows(state, |claim| visit(&mut claim.token));
    state.closing.iter_mut().for_each(|(_, token, _)| visit(token));
    for entry in &mut state.db.log {
        if let Entry::Begun { token } | Entry::Shut { token } | Entry::Renewed { token, .. } = entry {
            visit(token);
        }
    }
    for request in &mut state.requests {
        if let Request::Make { token } = request {
            visit(token);
        }
    }
    for relay in &mut state.relays {
        match &mut relay.holding {
            Holding::Nothing => {}
            Holding::Tail { token, .. } | Holding::List { token, .. } => visit(token),
        }
    }
}
