//! Destinations that refuse, and those that are silent.

use super::{
    DelayReason, Destination, Destinations, Duration, HeldBack, Instant, REJECTIONS, REMEMBERED, Sending, WAIT,
};
use crate::state::context::Context;

fn to(routing_key: &str) -> std::sync::Arc<Destination> {
    let routing_key = routing_key.to_owned();
    Destination { sink: "rabbitmq".to_owned(), target: "orders".to_owned(), routing_key }.into()
}

fn new() -> Destinations {
    Destinations::new(&Context::without_database())
}

/// All of them count as having worked.
fn destinations() -> Destinations {
    let mut context = Context::without_database();
    std::sync::Arc::get_mut(&mut context).unwrap().config.relay.first_destination_grace = Duration::ZERO;
    Destinations::new(&context)
}

fn held(reason: DelayReason, wait: Duration) -> HeldBack {
    HeldBack { wait, reason, error: "rabbitmq/orders: no queue".into() }
}

fn waits(wait: Duration) -> HeldBack {
    held(DelayReason::Unroutable, wait)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn within_the_grace_time_one_message_at_a_time_is_tried_and_none_is_rejected() {
    let mut destinations = destinations();
    let start = Instant::now();
    assert_eq!(destinations.refused(&to("missing"), "unroutable", "no queue", start), Some(waits(WAIT.0)));
    let admit = |destinations: &mut Destinations, after| destinations.admit(&to("missing"), start + after);
    let wait = |wait| Err(waits(wait));
    assert_eq!(admit(&mut destinations, Duration::ZERO), wait(WAIT.0));
    assert_eq!(admit(&mut destinations, seconds(20)), Ok(Sending::Try));
    assert_eq!(admit(&mut destinations, seconds(20)), wait(seconds(10)));
    assert_eq!(destinations.admit(&to("there"), start), Ok(Sending::Go));
    assert_eq!(
        destinations.refused(&to("missing"), "unroutable", "no queue", start + seconds(29)),
        Some(waits(Duration::from_millis(14_500)))
    );
    assert_eq!(destinations.gauge(&to("missing")).get(), 1);
    destinations.took([&to("missing")].into_iter(), start);
    assert_eq!(admit(&mut destinations, seconds(20)), Ok(Sending::Go));
    assert_eq!(destinations.gauge(&to("missing")).get(), 0);
}

#[test]
fn after_the_grace_time_so_many_are_rejected_and_then_no_more() {
    let mut destinations = destinations();
    let start = Instant::now();
    destinations.refused(&to("missing"), "unroutable", "no queue", start);
    let mut fates = |after| {
        let now = start + after;
        let tried = std::iter::repeat_with(|| destinations.admit(&to("missing"), now)).take(500);
        let tried = tried.filter(|admission| *admission == Ok(Sending::Try)).count();
        let rejected = (0..tried)
            .filter(|_| destinations.refused(&to("missing"), "unroutable", "no queue", now).is_none())
            .count();
        (tried, rejected)
    };
    let most = REJECTIONS as usize;
    assert_eq!([seconds(40), seconds(41), seconds(60)].map(&mut fates), [(most, most), (0, 0), (1, 0)]);
}

#[test]
fn an_operators_job_begins_the_outage_anew_but_for_the_rejections() {
    let mut destinations = destinations();
    let start = Instant::now();
    destinations.refused(&to("missing"), "unroutable", "no queue", start);
    let admit = |destinations: &mut Destinations, after| destinations.admit(&to("missing"), start + after);
    for _ in 0..REJECTIONS {
        assert_eq!(admit(&mut destinations, seconds(600)), Ok(Sending::Try));
        assert_eq!(destinations.refused(&to("missing"), "unroutable", "no queue", start + seconds(600)), None);
    }
    assert_eq!(admit(&mut destinations, seconds(601)), Err(waits(WAIT.1)));
    destinations.context.controls.set_newest_job(7);
    assert_eq!(admit(&mut destinations, seconds(602)), Ok(Sending::Try));
    assert_eq!([602, 604].map(|at| admit(&mut destinations, seconds(at))), [Err(waits(WAIT.0)), Ok(Sending::Try)]);
    for after in [605, 605 + 31] {
        let held = destinations.refused(&to("missing"), "unroutable", "no queue", start + seconds(after));
        assert!(held.is_some(), "more were rejected");
    }
}

#[test]
fn a_destination_that_nobody_uses_any_more_is_forgotten() {
    let mut destinations = destinations();
    let start = Instant::now();
    destinations.refused(&to("missing"), "unroutable", "no queue", start);
    destinations.forget(start + REMEMBERED);
    assert_eq!(destinations.gauge(&to("missing")).get(), 1);
    destinations.forget(start + REMEMBERED + seconds(1));
    assert_eq!(destinations.gauge(&to("missing")).get(), 0);
    assert_eq!(
        destinations.refused(&to("missing"), "unroutable", "no queue", start + seconds(900)),
        Some(waits(WAIT.0))
    );
}

#[test]
fn a_destination_is_silent_that_takes_nothing_while_others_do() {
    let mut destinations = destinations();
    let start = Instant::now();
    let mut silent = |took: &[(&str, u64)]| {
        for (to_it, after) in took {
            destinations.took([&to(to_it)].into_iter(), start + seconds(*after));
        }
        destinations.confirmed_nothing(&to("silent"), start + seconds(5), "no queue", start + seconds(15));
        let admitted = destinations.admit(&to("silent"), start + seconds(15));
        admitted == Err(held(DelayReason::Parked, WAIT.0))
    };
    assert!(!silent(&[("other", 4)]), "the whole sink may be silent");
    assert!(!silent(&[("other", 6), ("silent", 6)]), "it is one of its partitions");
    assert!(silent(&[("silent", 4), ("other", 6)]));
    destinations.context.controls.set_newest_job(7);
    let soon = start + Duration::from_millis(15_500);
    assert!(destinations.admit(&to("silent"), soon).is_err(), "the try may be in flight");
    destinations.reached("another");
    assert_eq!(destinations.admit(&to("silent"), start + seconds(17)), Ok(Sending::Try));
    destinations.reached("rabbitmq");
    assert_eq!(destinations.admit(&to("silent"), start + seconds(17)), Ok(Sending::Go));
}

#[test]
fn a_silent_destination_rejects_nothing_until_it_refuses() {
    let mut destinations = destinations();
    let start = Instant::now();
    destinations.took([&to("other")].into_iter(), start);
    destinations.confirmed_nothing(&to("silent"), start, "no queue", start);
    let later = start + seconds(600);
    let fates = [later, later + seconds(29), later + seconds(31)]
        .map(|now| destinations.refused(&to("silent"), "unroutable", "no queue", now));
    assert_eq!(fates, [Some(waits(WAIT.0)), Some(waits(Duration::from_millis(14_500))), None]);
}

#[test]
fn if_all_destinations_of_a_sink_refuse_none_is_rejected_until_one_takes_a_message() {
    let mut destinations = destinations();
    let start = Instant::now();
    let sinks_down = |destinations: &Destinations| destinations.context.health.sinks_down();
    destinations.refused(&to("a"), "unroutable", "no queue", start);
    assert!(sinks_down(&destinations).is_empty(), "one is missing");
    destinations.refused(&to("b"), "unroutable", "no queue", start);
    assert_eq!(sinks_down(&destinations), ["sink rabbitmq: all destinations in use refuse their messages: no queue"]);
    let tried = |destinations: &mut Destinations, at| {
        let tried = std::iter::repeat_with(|| destinations.admit(&to("a"), start + at)).take(500);
        tried.filter(|admission| *admission == Ok(Sending::Try)).count()
    };
    assert_eq!(tried(&mut destinations, seconds(60)), 1);
    assert!(destinations.refused(&to("a"), "unroutable", "no queue", start + seconds(60)).is_some());
    destinations.took([&to("b")].into_iter(), start + seconds(70));
    assert!(sinks_down(&destinations).is_empty());
    assert_eq!(tried(&mut destinations, seconds(150)), REJECTIONS as usize);
    assert_eq!(destinations.refused(&to("a"), "unroutable", "no queue", start + seconds(150)), None);
}

#[test]
fn one_destination_to_which_the_relay_may_not_write_is_all_there_are_unless_another_takes_messages() {
    let mut destinations = destinations();
    let start = Instant::now();
    let refused = |destinations: &mut Destinations, at| {
        destinations.refused(&to("a"), "refused", "may not write", start + seconds(at))
    };
    assert!(refused(&mut destinations, 0).is_some() && refused(&mut destinations, 60).is_some());
    assert_eq!(destinations.context.health.sinks_down().len(), 1);
    destinations.took([&to("b")].into_iter(), start + seconds(61));
    assert_eq!(refused(&mut destinations, 62), None);
    assert!(destinations.context.health.sinks_down().is_empty());
}

#[test]
fn a_sink_whose_refusing_destinations_are_forgotten_no_longer_takes_nothing() {
    let mut destinations = destinations();
    let start = Instant::now();
    destinations.refused(&to("a"), "refused", "may not write", start);
    destinations.forget(start + REMEMBERED + seconds(1));
    assert!(destinations.context.health.sinks_down().is_empty());
}

#[test]
fn a_destination_that_has_never_worked_is_waited_for_longer() {
    let start = Instant::now();
    let refused = |destinations: &mut Destinations, at| {
        destinations.refused(&to("a"), "unroutable", "no queue", start + seconds(at)).is_none()
    };
    let mut never = new();
    assert_eq!([0, 60, 3599, 3600].map(|at| refused(&mut never, at)), [false, false, false, true]);
    let mut here = new();
    here.took([&to("a")].into_iter(), start);
    here.forget(start + 2 * REMEMBERED);
    assert_eq!([700, 731].map(|at| refused(&mut here, at)), [false, true]);
    let mut elsewhere = new();
    assert!(!refused(&mut elsewhere, 0));
    let answer = elsewhere.context.unproven.lock().insert(to("a"), Some(true));
    assert_eq!(answer, Some(None), "the receipts are not searched for it");
    assert!(refused(&mut elsewhere, 31));
    elsewhere.took([&to("a")].into_iter(), start);
    assert!(elsewhere.context.unproven.lock().is_empty());
}
