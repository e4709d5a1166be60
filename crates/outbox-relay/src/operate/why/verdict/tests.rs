//! Each set of rows has its cause and remedy.

use outbox_core::{
    Uuid,
    store::operate::{
        controls::ControlRow,
        find::{MessageRow, ReceiptRow},
        jobs::JobRow,
    },
};

use super::{
    super::{
        super::instances::{Instance, InstanceState},
        discarded,
    },
    *,
};

const NOW: i64 = 1_700_000_000_000_000;
const SECOND: i64 = 1_000_000;

fn found(states: &[StateRow]) -> FoundMessage {
    let message = MessageRow {
        message_id: Uuid::nil(),
        topic: "orders".to_owned(),
        event_type: None,
        created_at: NOW - 3600 * SECOND,
        due_at: None,
        expires_at: None,
    };
    FoundMessage { now: NOW, message: Some(message), states: states.to_vec(), ..FoundMessage::default() }
}

fn row(table: StateTable, at: Option<i64>, reason: &str) -> StateRow {
    let reason = reason.to_owned();
    let error = Some("no\nqueue".to_owned());
    StateRow { table, lane: 7, key_hash: 9, attempts: 3, at, holds_key: true, reason, error }
}

fn pending() -> FoundMessage {
    found(&[row(StateTable::Pending, None, "")])
}

/// In a lane in which a relay works.
fn delayed(seconds: i64, reason: &str) -> FoundMessage {
    FoundMessage { owners: 1, ..found(&[row(StateTable::Delayed, Some(NOW + seconds * SECOND), reason)]) }
}

fn claim(seconds: i64) -> ClaimRow {
    ClaimRow {
        owner: "a".to_owned(),
        claimed_at: NOW - 40 * SECOND,
        lease_until: NOW + seconds * SECOND,
        kind: ClaimKind::List,
    }
}

fn receipt() -> ReceiptRow {
    ReceiptRow { owner: "a".to_owned(), sent_at: NOW - SECOND, place: Some("orders/3@184".to_owned()) }
}

fn pause(ends_at: Option<i64>) -> ControlRow {
    ControlRow {
        kind: "lane".to_owned(),
        name: "7".to_owned(),
        paused_at: NOW,
        ends_at,
        actor: "alice".to_owned(),
        reason: "repair".to_owned(),
    }
}

fn live(instances: Vec<Instance>) -> Live {
    Live { instances, ..Live::default() }
}

fn behind(found: FoundMessage) -> FoundMessage {
    FoundMessage { ahead: Some(5), ..found }
}

/// Checks the verdict's state and cause, a part of its sentence, and the beginning of its remedy.
fn check(found: &FoundMessage, expected: &str, part: &str, remedy: &str) {
    let verdict = judge(found, &Live::default());
    assert_eq!(format!("{}/{}", verdict.state, verdict.cause), expected, "{found:?}");
    assert!(verdict.why.contains(part), "{expected}: {}", verdict.why);
    let given = verdict.remedy.as_deref().unwrap_or_default();
    assert!(given.starts_with(remedy) && given.is_empty() == remedy.is_empty(), "{expected}: {given}");
}

#[test]
fn a_message_without_state_is_unknown_lost_or_sent() {
    let sent = |times| FoundMessage { receipts: vec![receipt(); times], ..found(&[]) };
    check(&FoundMessage::default(), "unknown/not_found", "No message of this outbox has this id", "relay inbox show");
    check(&found(&[]), "lost/no_state", "never sent", "insert its row");
    check(&sent(1), "sent/sent", "at 2023-11-14T22:13:19Z, as orders/3@184, to a.", "look at the consumer");
    check(&sent(2), "sent/sent", "It was sent 2 times.", "look at the consumer");
    let worker = ReceiptRow { place: Some("worker".to_owned()), ..receipt() };
    check(&FoundMessage { receipts: vec![worker], ..found(&[]) }, "sent/done", "Worker a has done its work at", "");
    let again = FoundMessage { receipts: vec![receipt()], ..delayed(9, "scheduled") };
    check(&again, "delayed/scheduled", "sent before, at 2023-11-14T22:13:19Z", "");
}

#[test]
fn a_message_that_a_replay_sends_elsewhere_has_its_job_and_destination() {
    let mark = |to: Option<&str>| Some(Mark { job_id: 7, to: to.map(str::to_owned) });
    let elsewhere = FoundMessage { mark: mark(Some("kafka/repair")), ..delayed(9, "no_sink") };
    check(&elsewhere, "delayed/no_sink", "Job 7 sends it to kafka/repair, and not to", "give the relays of its lane");
    let ordinary = FoundMessage { mark: mark(None), ..delayed(9, "scheduled") };
    assert!(!judge(&ordinary, &Live::default()).why.contains("Job 7"));
}

#[test]
fn a_claimed_message_has_its_relay() {
    let claimed = |seconds| FoundMessage { claims: vec![claim(seconds)], ..pending() };
    check(&claimed(20), "claimed/claimed", "Relay a has claimed it, 40 s ago, and publishes it", "");
    check(&claimed(20), "claimed/claimed", "Its lease lasts until 2023-11-14T22:13:40Z", "");
    let tailed = |kind| FoundMessage { claims: vec![ClaimRow { kind, ..claim(20) }], ..pending() };
    check(&tailed(ClaimKind::Closed), "claimed/closed", "which was closed 40 s ago, and may have published it.", "");
    check(
        &tailed(ClaimKind::Open),
        "claimed/tailed",
        "a tails its lane, and publishes it or takes it next. The tail was",
        "",
    );
    check(&claimed(-3), "claimed/lease_ended", "ended 3 s ago", "");
    check(&claimed(-70), "claimed/lease_ended", "None has.", "start a relay");
}

#[test]
fn a_pending_message_waits_for_its_key_or_others_or_a_relay() {
    let paused = |ends_at| FoundMessage { paused: Some(pause(ends_at)), ..behind(pending()) };
    check(
        &paused(None),
        "pending/paused",
        "alice has paused lane 7 at 2023-11-14T22:13:20Z: repair.",
        "relay resume --lane 7 --because …",
    );
    check(
        &paused(Some(NOW)),
        "pending/paused",
        "The pause ends at 2023-11-14T22:13:20Z.",
        "relay resume --lane 7 --because …",
    );
    let busy = |found: FoundMessage| FoundMessage { owners: 1, ..found };
    let mut expired = pending();
    expired.message.as_mut().unwrap().expires_at = Some(NOW);
    check(&FoundMessage { message: None, ..pending() }, "pending/message_missing", "None has.", "start a relay");
    check(&behind(pending()), "pending/behind", "behind message 5 of its key", "relay why 5");
    let later = FoundMessage { now: NOW + 60 * SECOND, ..expired.clone() };
    check(&later, "pending/expired", "None has.", "start a relay");
    check(&busy(expired), "pending/expired", "expired at 2023-11-14T22:13:20Z", "");
    check(&busy(pending()), "pending/in_line", "the first of lane 7.", "");
    let in_line = FoundMessage { before: 12, last_sent: Some(NOW - 2 * SECOND), ..pending() };
    let place = "12 messages of lane 7 go before it. The last of the lane was sent 2 s ago.";
    check(&busy(in_line.clone()), "pending/in_line", place, "");
    check(&in_line, "pending/in_line", place, "");
    let quiet = FoundMessage { last_sent: Some(NOW - 31 * SECOND), ..in_line.clone() };
    let gone = "The last of the lane was sent 31 s ago. No live relay serves the lane.";
    check(&quiet, "pending/no_relay", gone, "start a relay that serves lane 7");
    let last = FoundMessage { before: MAX_BEFORE, ..busy(pending()) };
    check(&last, "pending/in_line", "10000 or more messages", "");
    check(
        &pending(),
        "pending/no_relay",
        "message of this lane in the last minute",
        "start a relay that serves lane 7",
    );
}

#[test]
fn a_pending_message_has_no_relay_or_none_that_sends() {
    let in_line = FoundMessage { before: 12, last_sent: Some(NOW - 2 * SECOND), ..pending() };
    let process = Instance { instance: "a/1".to_owned(), role: "relay".to_owned(), ..Instance::default() };
    let drained = judge(&pending(), &live(vec![Instance { state: InstanceState::Draining, ..process.clone() }]));
    assert!(drained.why.ends_with("No live relay serves the lane: a/1 is draining."), "{}", drained.why);
    assert_eq!(drained.remedy.as_deref(), Some("relay resume --instance a/1 --because …"));
    let stuck = judge(&pending(), &live(vec![process.clone(); 2]));
    assert_eq!(stuck.cause, "stuck");
    assert!(stuck.why.ends_with("2 live relays serve the lane."), "{}", stuck.why);
    let sinks = [("kafka".to_owned(), Some("no broker\nanswers".to_owned()))].into();
    let down = live(vec![Instance { sinks, ..process.clone() }]);
    let refused = "Sink kafka takes nothing from 1 relay: no broker\nanswers.";
    for (found, cause) in [(&pending(), "sink"), (&in_line, "in_line")] {
        let verdict = judge(found, &down);
        assert!(verdict.cause == cause && verdict.why.ends_with(refused), "{verdict:?}");
    }
    // The message may be for a sink that takes messages.
    let sinks = [("kafka".to_owned(), Some("no broker\nanswers".to_owned())), ("mail".to_owned(), None)].into();
    let verdict = judge(&pending(), &live(vec![Instance { sinks, ..process }]));
    assert!(verdict.cause == "stuck" && verdict.why.ends_with(refused), "{verdict:?}");
}

#[test]
fn a_delayed_or_dead_message_has_its_reason() {
    let queued = found(&[row(StateTable::Delayed, None, "behind")]);
    check(&behind(queued.clone()), "delayed/behind", "behind message 5", "relay why 5");
    check(&queued, "delayed/next_of_key", "No live relay serves the lane.", "start a relay that serves lane 7");
    let busy = FoundMessage { owners: 1, ..queued };
    check(&busy, "delayed/next_of_key", "next in the queue of its key", "");
    check(&delayed(0, "unconfirmed"), "delayed/due", "due for 0 s", "");
    check(&delayed(-61, "unconfirmed"), "delayed/due", "None has.", "start a relay");
    check(&delayed(3600, "scheduled"), "delayed/scheduled", "scheduled at 2023-11-14T23:13:20Z (in 1 h)", "");
    let failed = "3 attempts failed, the last one unconfirmed: no\nqueue.";
    check(&delayed(9, "unconfirmed"), "delayed/unconfirmed", failed, "");
    check(&delayed(9, "rejected"), "delayed/rejected", "3 attempts failed, the last one rejected", "");
    let told = |reason, error: &str| {
        let mut found = delayed(9, reason);
        found.states[0].error = Some(error.to_owned());
        judge(&found, &Live::default()).why
    };
    let away = told("turned_away", "kafka/x: turned away: an earlier message failed");
    assert!(away.starts_with("Its sink turned it away: kafka/x: an earlier message failed. It is"), "{away}");
    let paused = told("paused", "paused by alice: repair");
    assert!(paused.starts_with("Its sink or destination is paused by alice: repair. It is"), "{paused}");
    check(&delayed(9, "snoozed"), "delayed/snoozed", "put it off", "");
    check(&delayed(9, "parked"), "delayed/parked", "takes nothing: no\nqueue", "treat the broker or the handler");
    check(&delayed(9, "paused"), "delayed/paused", "is paused: no\nqueue", "relay controls");
    check(&delayed(9, "unroutable"), "delayed/unroutable", "without a spent attempt", "create the destination");
    for (error, remedy) in
        [("the relay may not write to this exchange", "give the relay's user"), ("it is internal", "correct the route")]
    {
        let mut refused = delayed(9, "unroutable");
        refused.states[0].error = Some(error.to_owned());
        check(&refused, "delayed/unroutable", error, remedy);
    }
    check(&delayed(9, "no_route"), "delayed/no_route", "matches its topic orders", "add a route for its topic");
    check(&delayed(9, "unread"), "delayed/unread", "could not read it", "look for this id");
    check(&delayed(9, "by\thand"), "delayed/by\thand", "It waits (by\thand)", "");
    let dead = found(&[row(StateTable::Dead, Some(NOW), "too_large")]);
    check(&dead, "dead/too_large", "after 3 attempts: too_large: no\nqueue. The later", "remove the cause");
    let remedy = |found: &FoundMessage| judge(found, &Live::default()).remedy.unwrap_or_default();
    assert!(remedy(&dead).contains("release"), "{}", remedy(&dead));
    let mut released = dead;
    released.states[0].holds_key = false;
    assert!(!remedy(&released).contains("release"), "{}", remedy(&released));
}

#[test]
fn a_delayed_message_has_what_hinders_it_later() {
    let waits = delayed(90, "unconfirmed");
    let nobody = FoundMessage { owners: 0, ..waits.clone() };
    check(&nobody, "delayed/unconfirmed", "No live relay serves the lane.", "start a relay that serves lane 7");
    check(&behind(delayed(90, "scheduled")), "delayed/scheduled", "behind message 5 of its key, too", "relay why 5");
    let mut expires = waits.clone();
    expires.message.as_mut().unwrap().expires_at = Some(NOW + 60 * SECOND);
    check(&expires, "delayed/unconfirmed", "It expires before, at 2023-11-14T22:14:20Z", "");
    let paused = FoundMessage { paused: Some(pause(None)), ..waits };
    check(&paused, "delayed/unconfirmed", "alice has paused lane 7: repair.", "relay resume --lane 7 --because …");
}

#[test]
fn a_lane_of_workers_has_workers() {
    let workers = Live { of_workers: [7].into(), ..Live::default() };
    let told = |found: &FoundMessage| {
        let verdict = judge(found, &workers);
        format!("{} {}", verdict.why, verdict.remedy.unwrap_or_default())
    };
    assert!(told(&pending()).ends_with("No live worker serves the lane. start a worker that serves lane 7"));
    let claimed = FoundMessage { claims: vec![claim(20)], ..pending() };
    assert!(told(&claimed).starts_with("Worker a has claimed it, 40 s ago, and works on it."));
}

#[test]
fn what_cannot_be_retried_says_so() {
    let expired = found(&[row(StateTable::Dead, Some(NOW), "expired")]);
    check(&expired, "dead/expired", "expired", "it cannot be retried; to do without it, `relay dead release");
    let missing = FoundMessage { message: None, ..found(&[row(StateTable::Dead, Some(NOW), "message_missing")]) };
    check(&missing, "dead/message_missing", "after 3 attempts", "it cannot be retried");
}

#[test]
fn a_discarded_message_has_its_job() {
    let job = |job_id, action: &str, filter: &str| JobRow {
        job_id,
        action: action.to_owned(),
        filter: filter.to_owned(),
        created_at: NOW,
        ended_at: Some(NOW),
        is_stopped: false,
        is_refused: false,
        done: 3,
        planned: Some(3),
        actor: "alice".to_owned(),
        reason: "test data".to_owned(),
    };
    let jobs = [job(9, "discard", "{\"lane\":2}"), job(8, "retry", "{\"id\":5}"), job(7, "discard", "{\"id\":5}")];
    let told =
        |jobs: &[JobRow], id| discarded::by(jobs, id).map(|it| format!("{}: {}", it.cause, it.why)).unwrap_or_default();
    assert_eq!(told(&jobs, Some(5)), "discarded: Job 7 has discarded it, for alice: test data.");
    assert!(told(&jobs, None).contains("Job 9 may have discarded it, with 3 messages, for alice"));
    assert_eq!(told(&jobs[1..2], Some(5)), "");
}
