//! The standing claim holds in every state of a bounded world, and does not where one of its protections is missing.

use model::standing::{Standing, StandingFlaw};
use stateright::{Checker as _, Expectation, HasDiscoveries, Model as _};

fn world(keys: &[u64], faults: u8, looks: u8) -> Standing {
    Standing { keys: keys.to_vec(), relays: 2, faults, looks, flaw: None }
}

/// Visits every state. Returns the properties that are sometimes true and were.
fn check(protocol: Standing) -> Vec<&'static str> {
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    eprintln!("{} states, {} steps deep", checker.unique_state_count(), checker.max_depth());
    let mut reached: Vec<_> = checker.discoveries().into_keys().collect();
    reached.retain(|name| {
        let is_failure = checker.model().property(name).expectation == Expectation::Always;
        assert!(!is_failure, "{name}\n{:#?}", checker.discovery(name).map(stateright::Path::into_actions));
        true
    });
    reached.sort_unstable();
    reached
}

/// The properties that the flaw is found by.
fn found_by(flaw: StandingFlaw, protocol: Standing) -> Vec<&'static str> {
    let checker =
        Standing { flaw: Some(flaw), ..protocol }.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    eprintln!("{flaw:?}: {} states", checker.unique_state_count());
    let found = checker.discoveries().into_keys();
    found.filter(|name| checker.model().property(name).expectation == Expectation::Always).collect()
}

#[test]
fn with_one_message_and_a_fault_every_invariant_holds() {
    check(world(&[1], 1, 2));
}

#[test]
fn with_two_messages_every_invariant_holds() {
    check(world(&[1, 1], 0, 2));
    check(world(&[1, 2], 0, 2));
}

#[test]
fn with_two_messages_and_a_fault_every_invariant_holds_and_everything_is_seen() {
    let seen = check(world(&[1, 1], 1, 2));
    assert_eq!(
        seen,
        [
            "a duplicate",
            "a list in place of a standing claim",
            "a list that its owner finds",
            "a retry under a standing claim",
            "everything delivered and settled",
        ]
    );
    larger();
}

/// With `./dev model`: more of everything. Minutes, and gigabytes of memory.
fn larger() {
    if std::env::var_os("OUTBOX_MODEL_LARGE").is_none() {
        return;
    }
    check(world(&[1, 2], 1, 2));
    check(world(&[1], 2, 2));
    check(Standing { relays: 1, ..world(&[1, 1], 2, 4) });
}

macro_rules! flaws {
    ($($name:ident: $flaw:ident, $world:expr, $property:literal;)*) => {$(
        #[test]
        fn $name() {
            let found = found_by(StandingFlaw::$flaw, $world);
            assert!(found.contains(&$property), "found by {found:?}");
        }
    )*};
}

flaws! {
    claims_that_are_read_before_the_rows: ReadsSplit, world(&[1, 2], 0, 2), "lease";
    rows_that_are_taken_without_a_look_at_the_own_claim: OwnRowUnread, world(&[1], 0, 2), "lease";
    a_claim_that_outlives_its_settlement: RowKept, world(&[1, 2], 1, 3), "lease";
    a_closed_claim_with_an_open_successor: KindNotCopied, world(&[1, 2], 0, 3), "lease";
    rows_that_leave_memory_during_a_look: IdsForgotten, world(&[1], 0, 3), "no duplicate unannounced";
    failures_that_are_settled_during_a_look: KeysForgotten, world(&[1, 1], 1, 3), "order";
    rows_that_are_taken_after_an_end_was_sent: TakesWhileEnding, world(&[1], 1, 2), "lease";
    rows_above_the_mark: AboveMark, world(&[1], 0, 2), "lease";
    a_list_that_was_read_before_the_claim_was_closed: ListedBeforeClose, world(&[1, 2], 0, 2), "lease";
    a_list_with_another_token: ListWithoutToken, world(&[1], 0, 2), "lease";
    rows_that_were_taken_over_and_are_taken_without_a_list: TakeOversIgnored, world(&[1], 1, 2), "suspects in lists";
    rows_that_go_behind_a_claim_that_is_gone: BehindWithoutClaim, world(&[1], 2, 2), "fence";
    a_settlement_that_raises_low_over_what_was_put_back: LowWithoutTurn, Standing { relays: 1, ..world(&[1, 1], 1, 4) }, "order";
    two_standing_claims: TwoStanding, world(&[1], 0, 2), "one holder";
    other_claims_beside_a_standing_claim: OthersClaim, world(&[1], 0, 2), "one holder";
    a_settlement_of_a_claim_that_is_gone: NoFence, world(&[1], 1, 2), "fence";
}
