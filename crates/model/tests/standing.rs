//! The standing claim holds in every state of a bounded world, and does not where one of its protections is missing.

mod common;

use common::{check, found};
use model::standing::{Standing, StandingFlaw};

/// Two relays, whose marks are one above what they have seen.
fn world(keys: &[u64], faults: u8, looks: u8) -> Standing {
    Standing { keys: keys.to_vec(), relays: 2, faults, looks, ahead: 1, flaw: None }
}

/// One relay; claims are closed and listed all the same.
fn alone(keys: &[u64], faults: u8, looks: u8) -> Standing {
    Standing { relays: 1, ..world(keys, faults, looks) }
}

#[test]
fn with_one_message_and_faults_every_invariant_holds() {
    check(world(&[1], 1, 2));
    check(world(&[1], 0, 3));
}

#[test]
fn with_two_messages_every_invariant_holds() {
    check(world(&[1, 1], 0, 2));
    check(world(&[1, 2], 0, 2));
    check(alone(&[1, 1], 1, 4));
    check(alone(&[1, 2], 1, 3));
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
    check(world(&[1], 1, 3));
    check(alone(&[1, 1], 2, 4));
    check(alone(&[1, 2, 1], 1, 3));
}

macro_rules! flaws {
    ($($name:ident: $flaw:ident, $world:expr, $property:literal;)*) => {$(
        #[test]
        fn $name() {
            let found = found(Standing { flaw: Some(StandingFlaw::$flaw), ..$world });
            assert!(found.contains(&$property), "found by {found:?}");
        }
    )*};
}

flaws! {
    claims_that_are_read_before_the_rows: ReadsSplit, world(&[1], 0, 2), "lease";
    rows_that_are_taken_without_a_look_at_the_own_claim: OwnRowUnread, world(&[1], 0, 2), "lease";
    a_claim_that_outlives_its_settlement: RowKept, alone(&[1], 2, 4), "lease";
    a_receipt_of_an_earlier_text: TextsAlike, alone(&[1, 1], 2, 4), "no duplicate unannounced";
    a_closed_claim_with_an_open_successor: KindNotCopied, world(&[1, 2], 0, 3), "lease";
    rows_that_leave_memory_during_a_look: IdsForgotten, world(&[1], 0, 3), "no duplicate unannounced";
    failures_that_are_settled_during_a_look: KeysForgotten, alone(&[1, 1], 1, 4), "order";
    rows_that_are_taken_after_an_end_was_sent: TakesWhileEnding, world(&[1], 1, 2), "lease";
    rows_above_the_mark: AboveMark, Standing { ahead: 0, ..world(&[1], 0, 2) }, "lease";
    a_list_that_was_read_before_the_claim_was_closed: ListedBeforeClose, world(&[1, 2], 0, 2), "lease";
    a_list_with_another_token: ListWithoutToken, world(&[1], 0, 2), "lease";
    rows_that_were_taken_over_and_are_taken_without_a_list: TakeOversIgnored, world(&[1], 1, 2), "suspects in lists";
    a_settlement_that_raises_low_over_what_was_put_back: LowWithoutTurn, Standing { ahead: 0, ..alone(&[1, 1], 1, 4) }, "no row overlooked";
    two_standing_claims: TwoStanding, world(&[1], 0, 2), "one holder";
    other_claims_beside_a_standing_claim: OthersClaim, world(&[1], 0, 2), "one holder";
    a_settlement_of_a_claim_that_is_gone: NoFence, world(&[1], 2, 2), "fence";
}
