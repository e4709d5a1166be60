//! The protocol holds in every state of a bounded world, and does not where one of its protections is missing.

mod common;

use common::{check, is_found};
use model::{Flaw, Protocol};

/// Two relays with one claim each.
fn world(keys: &[u64], faults: u8) -> Protocol {
    let claim_messages = 2;
    let of_key = usize::MAX;
    let keys = keys.to_vec();
    let workers = false;
    let looks_past = false;
    let flaw = None;
    Protocol { keys, relays: 2, faults, claim_messages, of_key, workers, looks_past, claims: 1, passes: 2, flaw }
}

/// Two relays with two claims each and time for a third look.
fn longer(keys: &[u64], faults: u8) -> Protocol {
    Protocol { claims: 2, passes: 3, ..world(keys, faults) }
}

/// A claim takes one message of a key, and puts the others into its queue.
fn queued(protocol: Protocol) -> Protocol {
    Protocol { of_key: 1, ..protocol }
}

/// A pass makes up to two claims, of one message each.
fn workers(protocol: Protocol) -> Protocol {
    Protocol { workers: true, ..protocol }
}

/// Any look may leave out a key.
fn past(protocol: Protocol) -> Protocol {
    Protocol { looks_past: true, ..protocol }
}

#[test]
fn with_late_commits_and_one_fault_every_invariant_holds_and_everything_is_seen() {
    let seen = check(world(&[1, 2, 1], 1));
    let all = ["a duplicate", "a fenced settle", "a late commit delivered", "a retry", "a take-over"];
    assert_eq!(seen, [&all[..], &["everything delivered and settled"]].concat());
}

#[test]
fn with_several_claims_of_a_key_in_flight_every_invariant_holds() {
    check(Protocol { claims: 2, ..world(&[1, 1], 1) });
    check(Protocol { claims: 2, ..world(&[1, 2, 1], 0) });
    check(longer(&[1, 1], 2));
}

#[test]
fn with_queues_of_keys_every_invariant_holds() {
    check(queued(world(&[1, 1, 1], 1)));
    check(queued(world(&[1, 2, 1], 1)));
    check(queued(longer(&[1, 1], 1)));
}

#[test]
fn with_looks_past_a_key_every_invariant_holds() {
    check(past(world(&[1, 2, 1], 0)));
    check(past(queued(world(&[1, 2, 1], 1))));
    check(past(longer(&[1, 1], 1)));
    check(past(Protocol { claims: 2, ..world(&[1, 2, 1], 0) }));
    check(past(workers(queued(world(&[1, 1], 1)))));
}

#[test]
fn with_several_claims_of_a_workers_pass_every_invariant_holds() {
    check(workers(world(&[1, 2], 1)));
    check(workers(world(&[1, 2, 1], 0)));
    check(workers(Protocol { claims: 2, ..world(&[1, 0, 2], 0) }));
    check(workers(queued(world(&[1, 1, 2], 0))));
    check(workers(queued(world(&[1, 1], 1))));
}

#[test]
fn with_messages_without_a_key_every_invariant_holds() {
    check(world(&[0, 0], 1));
    check(world(&[0, 1, 0], 0));
}

#[test]
fn with_four_messages_every_invariant_holds() {
    check(world(&[1, 2, 1, 2], 0));
}

#[test]
fn with_several_faults_every_invariant_holds() {
    check(world(&[1, 1], 2));
    larger();
}

/// With `./dev model`: more of everything. Minutes, and gigabytes of memory.
fn larger() {
    if std::env::var_os("OUTBOX_MODEL_LARGE").is_none() {
        return;
    }
    check(world(&[1, 2, 1], 2));
    check(world(&[1, 2, 1, 2], 1));
    check(longer(&[1, 2, 1], 1));
    check(longer(&[1, 1, 1], 2));
    check(queued(longer(&[1, 1, 1], 1)));
    check(workers(world(&[1, 2, 1], 1)));
    check(workers(queued(world(&[1, 2, 1], 1))));
    check(past(longer(&[1, 2, 1], 1)));
    check(Protocol { relays: 3, ..longer(&[1, 1], 1) });
    check(Protocol { relays: 3, claims: 1, ..longer(&[1, 2, 1], 1) });
}

macro_rules! flaws {
    ($($name:ident: $flaw:ident, $world:expr, $property:literal;)*) => {$(
        #[test]
        fn $name() {
            assert!(is_found(Protocol { flaw: Some(Flaw::$flaw), ..$world }, $property), "not found by {}", $property);
        }
    )*};
}

flaws! {
    a_settle_without_the_fence: NoFence, world(&[1, 1], 1), "I7 fence";
    a_fence_on_the_owner_alone: FenceOnOwner, Protocol { claims: 2, ..world(&[1, 2], 2) }, "I7 fence";
    a_look_below_before_the_candidates: GapsFirst, world(&[1, 2, 1], 0), "I5 order";
    no_look_below: NoGaps, world(&[1, 2, 1], 0), "I5 order";
    a_version_that_is_read_after_the_candidates: LateVersion, world(&[1, 1], 1), "I4 no duplicate without a fault";
    candidates_that_a_locking_scan_finds: LockingScan, world(&[1, 2, 1], 0), "I5 order";
    a_claim_whatever_the_version: NoCompareAndSet, world(&[1, 1], 0), "I5 one claimer of a key";
    rows_that_go_behind_a_claim_that_was_not_made: BehindNoClaim, queued(world(&[1, 1], 0)), "I4 no duplicate without \
                                                                                              a fault";
    a_look_at_what_is_not_committed: DirtyRead, world(&[1], 1), "I2 no phantom";
    keys_of_other_relays_that_are_not_left_alone: KeysOfOthers, world(&[1, 1], 0), "I5 one claimer of a key";
    keys_of_a_workers_own_claims_that_are_claimed_again: KeysOfOwn, workers(Protocol { claims: 2, ..world(&[1, 1], 0) }), "I5 one claimer of a key";
    two_claims_of_a_pass_with_one_key: DividedById, workers(world(&[1, 1], 0)), "I5 one claimer of a key";
    messages_of_claims_that_are_claimed_again: ClaimedIds, world(&[0], 0), "I7 one claim of a message";
    claims_that_stand_and_are_not_looked_at: StandingClaimsUnseen, world(&[0], 0), "I7 one claim of a message";
    a_claim_that_vanishes_and_leaves_its_keys_free: VanishedKeysForgotten, world(&[1, 1], 1), "I5 order";
    a_claim_that_vanishes_and_leaves_low: VanishedIdsForgotten, longer(&[1, 2, 1], 1), "I5 order";
    a_failure_of_a_claim_that_was_lost: FailedDoNotReturn, longer(&[1, 1], 2), "I5 order";
    a_start_from_a_floor_that_rose_since_the_look: FloorAfterLook, world(&[1, 2, 1], 0), "I5 order";
    rows_that_a_look_left_out_and_the_next_does_not_see: LeftOutForgotten, past(world(&[1, 2, 1], 0)), "I5 order";
    a_row_put_back_below_the_start_of_a_look: PutBackUnseen, world(&[1, 2, 1], 1), "I5 order";
    a_retry_that_does_not_hold_back_its_key: RetryHoldsNothing, world(&[1, 1], 1), "I5 order";
    a_failure_that_lets_the_next_of_its_key_go: FailureHoldsNothing, world(&[1, 1], 1), "I5 order";
    a_claim_made_before_a_failure_was_written: PassForgotten, Protocol { claims: 2, ..world(&[1, 1], 1) }, "I5 order";
    promotion_that_leaves_the_version: PromoteKeepsVersion, world(&[1, 1], 1), "I5 order";
    promotion_that_leaves_low: PromoteKeepsLow, world(&[1, 2, 1], 1), "I5 order";
    a_time_out_that_counts_as_sent: TimeOutIsSent, world(&[1], 1), "I1 no loss";
    a_renewal_without_the_token: RenewWithoutToken, world(&[1], 1), "I7 lease";
    a_renewal_without_a_reply_that_counts: UnansweredRenewalCounts, world(&[1], 2), "I7 lease";
    a_take_over_before_the_lease_has_passed: TakeOverAtOnce, world(&[1], 0), "I7 lease";
}
