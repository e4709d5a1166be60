//! The tail holds in every state of a bounded world, and does not where one of its protections is missing.

mod common;

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use common::{check, is_found, reached};
use model::tail::{Tail, TailFlaw};
use stateright::{Checker as _, Model as _, UniformChooser};

/// Two relays, whose marks are one above what they have seen.
fn world(keys: &[u64], faults: u8, looks: u8) -> Tail {
    let has_earlier = false;
    let has_prepared = false;
    let has_renewals = false;
    let flaw = None;
    Tail { keys: keys.to_vec(), relays: 2, faults, looks, ahead: 1, has_earlier, has_prepared, has_renewals, flaw }
}

/// One relay; claims are closed and listed all the same.
fn alone(keys: &[u64], faults: u8, looks: u8) -> Tail {
    Tail { relays: 1, ..world(keys, faults, looks) }
}

/// One of the relays is of an earlier release.
fn upgrade(keys: &[u64], faults: u8, looks: u8) -> Tail {
    Tail { has_earlier: true, ..world(keys, faults, looks) }
}

fn renewed(world: Tail) -> Tail {
    Tail { has_renewals: true, ..world }
}

fn prepared(world: Tail) -> Tail {
    Tail { has_prepared: true, ..world }
}

static CHECKED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Checks a world once for all tests that share it. They wait: each check uses all processors. Larger worlds of two
/// relays take minutes, and are left to `./dev model`.
fn sound(world: Tail) {
    let is_small = world.keys.len() == 1 && world.faults == 0 && world.looks == 1;
    let is_large = world.relays > 1 && !world.has_earlier && !is_small || world.keys.len() > 1 && world.faults > 1;
    if is_large && std::env::var_os("OUTBOX_MODEL_LARGE").is_none() {
        return;
    }
    let mut checked = CHECKED.lock().unwrap_or_else(PoisonError::into_inner);
    if checked.insert(format!("{world:?}")) {
        check(world);
    }
}

#[test]
fn with_one_message_and_faults_every_invariant_holds() {
    sound(world(&[1], 0, 1));
    sound(alone(&[1], 2, 1));
    sound(world(&[1], 1, 1));
    sound(world(&[1], 0, 2));
    sound(upgrade(&[1], 1, 1));
}

#[test]
fn with_two_messages_every_invariant_holds() {
    sound(world(&[1, 1], 0, 1));
    sound(world(&[1, 2], 0, 1));
    sound(alone(&[1, 2], 1, 1));
    sound(alone(&[1, 1, 1], 0, 1));
    sound(prepared(alone(&[1, 1], 0, 2)));
}

#[test]
fn with_two_messages_and_a_fault_every_invariant_holds_and_everything_is_seen() {
    let seen = check(alone(&[1, 1], 1, 2));
    assert_eq!(
        seen,
        [
            "a duplicate",
            "a list in place of a tail",
            "a list that its owner finds",
            "a retry under a tail",
            "everything delivered and settled",
        ]
    );
    larger();
}

/// With `./dev model`: more of everything. The states of the first world that is walked through passed 23 GiB.
fn larger() {
    if std::env::var_os("OUTBOX_MODEL_LARGE").is_none() {
        return;
    }
    check(alone(&[1, 1, 1], 1, 1));
    walk(world(&[1], 2, 1));
    check(upgrade(&[1, 1], 0, 1));
    check(prepared(world(&[1, 1], 0, 1)));
    walk(world(&[1, 1], 1, 1));
}

/// Walks at random through a world for five minutes.
fn walk(world: Tail) {
    let walks = world.checker().threads(2).timeout(Duration::from_mins(5)).spawn_simulation(0, UniformChooser).join();
    eprintln!("{} steps, {} at most in a walk", walks.state_count(), walks.max_depth());
    reached(&walks);
}

macro_rules! flaws {
    ($($name:ident: $flaw:ident, $world:expr, $property:literal;)*) => {$(
        #[test]
        fn $name() {
            sound($world);
            assert!(is_found(Tail { flaw: Some(TailFlaw::$flaw), ..$world }, $property), "not found by {}", $property);
        }
    )*};
}

flaws! {
    a_stream_that_is_opened_after_the_claim: StreamOpenedLate, alone(&[1, 1], 0, 1), "lease";
    events_from_before_the_claim: EarlierEventsCount, alone(&[1], 0, 3), "no duplicate unannounced";
    rows_that_were_there_before: PendingUnread, alone(&[1, 1], 0, 1), "order";
    events_that_are_applied_before_the_read: EventsBeforeRead, alone(&[1, 1], 0, 1), "order";
    rows_that_are_taken_before_their_commit: TakenBeforeCommit, alone(&[1], 1, 1), "no phantom";
    rows_of_a_prepared_transaction: PreparedForgotten, prepared(alone(&[1, 1], 0, 1)), "memory";
    a_close_that_the_owner_does_not_see: CloseUnseen, world(&[1], 0, 1), "lease";
    rows_that_are_taken_without_a_look_at_the_own_claim: OwnRowUnread, world(&[1], 0, 1), "lease";
    a_tail_beside_lists: ListsBeside, world(&[1, 1], 0, 1), "memory";
    a_claim_that_outlives_its_settlement: RowKept, alone(&[1], 2, 1), "lease";
    a_receipt_of_an_earlier_text: TextsAlike, alone(&[1, 1], 2, 1), "memory";
    a_closed_claim_with_an_open_successor: KindNotCopied, world(&[1, 2], 0, 1), "lease";
    rows_that_are_forgotten_at_the_reply: IdsForgotten, alone(&[1], 0, 1), "no duplicate unannounced";
    failures_that_are_forgotten_at_the_reply: KeysForgotten, alone(&[1, 1], 1, 1), "order";
    a_renewal_that_passes_for_the_end_of_its_claim: RenewalIsEnd, renewed(alone(&[1, 1], 1, 1)), "order";
    arrivals_of_a_held_key_that_are_left_alone: ArrivalsLeft, alone(&[1, 1], 1, 1), "memory";
    rows_that_are_taken_after_an_end_was_sent: TakesWhileEnding, world(&[1], 1, 1), "lease";
    rows_above_the_mark: AboveMark, Tail { ahead: 0, ..world(&[1], 0, 1) }, "lease";
    a_list_that_was_read_before_the_claim_was_closed: ListedBeforeClose, world(&[1, 2], 0, 1), "lease";
    delayed_rows_that_are_read_without_locks: DelayedUnlocked, alone(&[1], 1, 1), "no loss";
    rows_that_were_taken_over_and_are_taken_without_a_list: TakeOversIgnored, alone(&[1], 1, 2), "suspects in lists";
    an_earlier_release_that_is_not_locked_out: NoSeal, upgrade(&[1], 0, 1), "one holder";
    an_earlier_release_that_is_let_in_at_the_close: UnsealedAtClose, upgrade(&[1], 0, 1), "one holder";
    a_version_that_an_earlier_look_has_read: VersionRepeats, upgrade(&[1], 1, 1), "one holder";
    a_settlement_of_a_claim_that_is_gone: NoFence, alone(&[1], 2, 1), "fence";
}
