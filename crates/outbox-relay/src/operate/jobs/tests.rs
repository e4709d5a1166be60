//! Parts of jobs, and what actions leave out.

use outbox_core::store::operate::find::StateRow;

use super::*;

fn row(lane: u16, id: u64) -> UnsentRow {
    let state = StateRow {
        table: StateTable::Dead,
        lane,
        key_hash: 1,
        attempts: 1,
        at: Some(0),
        holds_key: true,
        reason: "too_large".to_owned(),
        error: None,
    };
    let message_id = Some(outbox_core::Uuid::nil());
    UnsentRow { id, state, message_id, topic: "orders".to_owned(), created_at: Some(0), is_replayed: false }
}

fn part(lane: u16, ids: &[u64], last: (u16, u64), is_last: bool) -> JobPart {
    JobPart { lane, ids: ids.to_vec(), last, is_last }
}

#[test]
fn a_part_has_one_lane_at_most_so_many_messages_and_an_end() {
    let rows = [row(0, 1), row(0, 2), row(0, 3), row(1, 1)];
    let all = |_: &UnsentRow| Some(true);
    assert_eq!(JobPart::of(&rows, (0, 0), 2, all), part(0, &[1, 2], (0, 2), false));
    assert_eq!(JobPart::of(&rows, (0, 0), 9, all), part(0, &[1, 2, 3], (0, 3), false));
    assert_eq!(JobPart::of(&rows[3..], (0, 3), 1, all), part(1, &[1], (1, 1), true));
    assert_eq!(JobPart::of(&rows, (0, 0), 9, |row| Some(row.state.lane == 1)), part(1, &[1], (1, 1), true));
    assert_eq!(
        JobPart::of(&rows, (0, 0), 9, |row| (row.state.lane == 0).then_some(row.id == 2)),
        part(0, &[2], (0, 3), true)
    );
    assert_eq!(JobPart::of(&[], (0, 7), 9, all), part(0, &[], (0, 7), true));
    let page: Vec<_> = (1..=u64::from(PAGE)).map(|id| row(0, id)).collect();
    assert_eq!(JobPart::of(&page, (0, 0), 9, |_| Some(false)), part(0, &[], (0, u64::from(PAGE)), false));
}

fn with(change: impl Fn(&mut StateRow)) -> UnsentRow {
    let mut row = row(0, 1);
    change(&mut row.state);
    row
}

#[test]
fn each_action_leaves_out_what_it_does_not_fit() {
    let all = Filter::default();
    let [gone, expired, free] = [
        UnsentRow { message_id: None, ..row(0, 1) },
        with(|state| state.reason = "expired".to_owned()),
        with(|state| state.holds_key = false),
    ];
    let left_out =
        |action: Action| [&row(0, 1), &gone, &expired, &free].map(|row| action.leaves_out(row, &all).is_some());
    assert_eq!(left_out(Action::Retry), [false, true, true, false]);
    assert_eq!(left_out(Action::Release), [false, false, false, true]);
    assert_eq!(left_out(Action::Discard), [false; 4]);
    let queued = with(|state| state.at = None);
    let scheduled = with(|state| state.reason = "scheduled".to_owned());
    let left_out =
        |filter| [&row(0, 1), &queued, &scheduled].map(|row| Action::Hurry.leaves_out(row, &filter).is_some());
    assert_eq!(left_out(all.clone()), [false, true, true]);
    assert_eq!(left_out(Filter { id: Some(1), ..all }), [false, true, false]);
}

#[test]
fn what_may_have_arrived_may_arrive_twice() {
    let rows = [(0, "parked"), (1, "too_large"), (1, "attempts_exhausted"), (2, "too_large")]
        .map(|(attempts, reason)| with(|state| (state.attempts, state.reason) = (attempts, reason.to_owned())));
    let may_repeat = |action: Action| rows.each_ref().map(|row| action.may_repeat(row));
    assert_eq!(may_repeat(Action::Hurry), [false, true, true, true]);
    assert_eq!(may_repeat(Action::Retry), [false, false, true, true]);
    assert_eq!(may_repeat(Action::Discard), [false; 4]);
}

#[test]
fn a_message_whose_key_did_not_wait_may_break_its_order() {
    let [free, keyless] =
        [with(|state| state.holds_key = false), with(|state| (state.holds_key, state.key_hash) = (false, 0))];
    let may = |action: Action| [&row(0, 1), &free, &keyless].map(|row| action.may_break_order(row));
    assert_eq!(may(Action::Retry), [false, true, false]);
    assert_eq!(may(Action::Hurry), [false; 3]);
}

#[test]
fn a_filter_with_a_property_that_this_program_does_not_know_is_not_read() {
    assert!(serde_json::from_str::<Filter>(r#"{"topic":"a"}"#).is_ok());
    assert!(serde_json::from_str::<Filter>(r#"{"topic":"a","event_type":"b"}"#).is_err());
}
