//! Destinations that take nothing although their sink can be reached. Examples are a topic unknown to one broker, a
//! partition without a leader, a queue whose node is down and a refused grant. Their messages wait, and no others wait
//! with them.
//!
//! If the broker refuses, no message is rejected within a grace time. After it a bounded number is rejected, so that an
//! operator notices. A refused grant must not make all enqueued messages dead, so from then on all wait. If the broker
//! only confirms nothing, no message is rejected. Some messages are tried from time to time, until the destination
//! takes one.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{pipeline::retry::Disposition, sink::Destination, state::context::Context};

/// Most messages of one destination that are rejected before it takes one again.
const REJECTIONS: u32 = 100;
/// The shortest and the longest time between two tries, and the bounds of a message's wait.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The time for which a destination without tries is remembered.
const REMEMBERED: Duration = Duration::from_secs(300);
/// Most destinations that are remembered: a routing key can have as many values as there are message keys. Messages of
/// other destinations wait and are not rejected.
const MOST: usize = 10_000;

/// How a message may go to its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sending {
    /// With other messages.
    Go,
    /// In a batch without messages for healthy destinations: on RabbitMQ a refused grant ends the channel.
    Try,
}

/// The wait of a message that is held back, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldBack {
    wait: Duration,
    reason: &'static str,
    /// The error of the destination's last failed message.
    pub(crate) error: Arc<str>,
}

impl HeldBack {
    /// Returns the outcome of the message.
    pub(crate) fn disposition(&self) -> Disposition {
        Disposition::Delay { wait: self.wait, spent: false, reason: self.reason }
    }
}

/// The trouble of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sickness {
    /// It refuses its messages; this many were rejected.
    Refuses { rejected: u32 },
    /// It confirms nothing, though other destinations of its sink do.
    Silent,
}

/// A destination that takes nothing.
#[derive(Debug)]
struct Sick {
    trouble: Sickness,
    since: Instant,
    /// The time of the last failed message, and its error.
    last: Instant,
    error: Arc<str>,
    next_try: Instant,
    /// Messages that may still go before the next try.
    left: u32,
    /// The newest job of an operator that it takes into account.
    job: u64,
}

impl Sick {
    fn held(&self, now: Instant) -> HeldBack {
        let reason = if self.trouble == Sickness::Silent { "parked" } else { "unroutable" };
        HeldBack { wait: self.wait(now), reason, error: Arc::clone(&self.error) }
    }

    /// Returns half of the outage so far, so that a long outage writes a waiting message only a few times.
    fn wait(&self, now: Instant) -> Duration {
        ((now - self.since) / 2).clamp(WAIT.0, WAIT.1)
    }
}

/// The destinations that take nothing.
pub(crate) struct Destinations {
    context: Arc<Context>,
    sick: HashMap<Arc<Destination>, Sick>,
    /// The last confirmation of each destination, and of each sink.
    confirmed: HashMap<Arc<Destination>, Instant>,
    last_confirmed: HashMap<String, Instant>,
}

impl Destinations {
    /// Starts without any.
    #[must_use]
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        let context = Arc::clone(context);
        Self { context, sick: HashMap::new(), confirmed: HashMap::new(), last_confirmed: HashMap::new() }
    }

    /// Decides on a message that is ready to go out. The error says why it must wait.
    pub(crate) fn admit(&mut self, destination: &Destination, now: Instant) -> Result<Sending, HeldBack> {
        if self.sick.is_empty() {
            return Ok(Sending::Go);
        }
        let grace = self.context.config.relay.unroutable_grace;
        let deadline = self.context.config.relay.publish_deadline;
        let Some(sick) = self.sick.get_mut(destination) else { return Ok(Sending::Go) };
        let newest = self.context.controls.newest_job();
        if sick.job != newest {
            sick.job = newest;
            // An operator who orders something may have removed the cause: it is as if the outage began now. A try of a silent
            // destination may still be in flight.
            if sick.trouble != Sickness::Silent {
                (sick.since, sick.next_try) = (now, now);
            }
        }
        if now >= sick.next_try {
            // A try of a silent destination takes the whole deadline. The next try waits for its end.
            let least = if sick.trouble == Sickness::Silent { deadline + WAIT.0 } else { WAIT.0 };
            sick.next_try = now + sick.wait(now).max(least);
            sick.left = match sick.trouble {
                Sickness::Refuses { rejected } if now - sick.since >= grace => {
                    REJECTIONS.saturating_sub(rejected).max(1)
                }
                _ => 1,
            };
        }
        if sick.left == 0 {
            return Err(sick.held(now));
        }
        sick.left -= 1;
        Ok(Sending::Try)
    }

    /// Notes confirmed messages of these destinations.
    pub(crate) fn took<'a>(&mut self, destinations: impl Iterator<Item = &'a Arc<Destination>>, now: Instant) {
        let mut last: Option<&Arc<Destination>> = None;
        for destination in destinations {
            if last.replace(destination).is_some_and(|last| Arc::ptr_eq(last, destination)) {
                continue;
            }
            if self.confirmed.len() >= MOST {
                self.confirmed.clear();
            }
            self.confirmed.insert(Arc::clone(destination), now);
            match self.last_confirmed.get_mut(&destination.sink) {
                Some(last) => *last = now,
                None => drop(self.last_confirmed.insert(destination.sink.clone(), now)),
            }
            if !self.sick.is_empty() && self.sick.remove(destination).is_some() {
                let Destination { sink, target, .. } = &**destination;
                tracing::info!(sink, destination = target, "the destination takes messages again");
                self.gauge(destination).dec();
            }
        }
    }

    /// Notes that a destination refused a message. Returns how the message is held back; `None` if it is rejected.
    pub(crate) fn refused(&mut self, destination: &Arc<Destination>, error: &str, now: Instant) -> Option<HeldBack> {
        let refuses = Sickness::Refuses { rejected: 0 };
        let grace = self.context.config.relay.unroutable_grace;
        let Some(sick) = self.note(destination, refuses, error, now) else {
            return Some(HeldBack { wait: WAIT.1, reason: "unroutable", error: told(destination, error) });
        };
        if sick.trouble == Sickness::Silent {
            (sick.trouble, sick.since) = (refuses, now);
        }
        match &mut sick.trouble {
            Sickness::Refuses { rejected } if now - sick.since >= grace && *rejected < REJECTIONS => {
                *rejected += 1;
                if *rejected == REJECTIONS {
                    let Destination { sink, target, .. } = &**destination;
                    tracing::error!(
                        sink,
                        destination = target,
                        error,
                        "{REJECTIONS} messages were rejected; the others wait until the destination takes one"
                    );
                }
                None
            }
            _ => Some(sick.held(now)),
        }
    }

    /// Notes that a message in flight since `since` was not confirmed in time. Its destination is silent if it
    /// confirmed no other message meanwhile, and other destinations of its sink did.
    pub(crate) fn confirmed_nothing(
        &mut self,
        destination: &Arc<Destination>,
        since: Instant,
        error: &str,
        now: Instant,
    ) {
        let is_meanwhile = |at: &Instant| *at >= since;
        let took_another = self.confirmed.get(destination).is_some_and(is_meanwhile);
        if !took_another && self.last_confirmed.get(&destination.sink).is_some_and(is_meanwhile) {
            self.note(destination, Sickness::Silent, error, now);
        }
    }

    /// Notes the trouble of a destination, if there is room for it.
    fn note(
        &mut self,
        destination: &Arc<Destination>,
        trouble: Sickness,
        error: &str,
        now: Instant,
    ) -> Option<&mut Sick> {
        if !self.sick.contains_key(destination) {
            if self.sick.len() >= MOST {
                return None;
            }
            let Destination { sink, target, .. } = &**destination;
            tracing::warn!(sink, destination = target, error, "the destination takes nothing: its messages wait");
            self.gauge(destination).inc();
            let error = told(destination, error);
            let job = self.context.controls.newest_job();
            let sick = Sick { trouble, since: now, last: now, error, next_try: now + WAIT.0, left: 0, job };
            self.sick.insert(Arc::clone(destination), sick);
        }
        let sick = self.sick.get_mut(destination)?;
        (sick.last, sick.error) = (now, told(destination, error));
        Some(sick)
    }

    /// Forgets the silent destinations of a sink that was reached again: the whole sink was silent.
    pub(crate) fn reached(&mut self, sink: &str) {
        self.drop_if(|destination, sick| destination.sink == sink && sick.trouble == Sickness::Silent);
    }

    /// Forgets destinations that were not tried for a while: no message waits for them any more.
    pub(crate) fn forget(&mut self, now: Instant) {
        self.drop_if(|_, sick| now - sick.last > REMEMBERED);
        self.confirmed.retain(|_, at| now - *at <= REMEMBERED);
    }

    fn drop_if(&mut self, is_over: impl Fn(&Destination, &Sick) -> bool) {
        let over: Vec<_> = self.sick.iter().filter(|(it, sick)| is_over(it, sick)).map(|it| it.0.clone()).collect();
        for destination in over {
            self.sick.remove(&destination);
            self.gauge(&destination).dec();
        }
    }

    fn gauge(&self, destination: &Destination) -> prometheus::IntGauge {
        let metrics = &self.context.metrics;
        let labels = [destination.sink.as_str(), metrics.destination(&destination.target)];
        metrics.refusing_destinations.with_label_values(&labels)
    }
}

fn told(destination: &Destination, error: &str) -> Arc<str> {
    format!("{destination}: {error}").into()
}

#[cfg(test)]
mod tests {
    use super::{Destination, Destinations, Duration, HeldBack, Instant, REJECTIONS, REMEMBERED, Sending, WAIT};
    use crate::state::context::Context;

    fn to(routing_key: &str) -> std::sync::Arc<Destination> {
        let routing_key = routing_key.to_owned();
        Destination { sink: "rabbitmq".to_owned(), target: "orders".to_owned(), routing_key }.into()
    }

    fn destinations() -> Destinations {
        Destinations::new(&Context::without_database())
    }

    fn held(reason: &'static str, wait: Duration) -> HeldBack {
        HeldBack { wait, reason, error: "rabbitmq/orders: no queue".into() }
    }

    fn waits(wait: Duration) -> HeldBack {
        held("unroutable", wait)
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn within_the_grace_time_one_message_at_a_time_is_tried_and_none_is_rejected() {
        let (mut destinations, start) = (destinations(), Instant::now());
        assert_eq!(destinations.refused(&to("missing"), "no queue", start), Some(waits(WAIT.0)));
        let admit = |destinations: &mut Destinations, after| destinations.admit(&to("missing"), start + after);
        let wait = |wait| Err(waits(wait));
        assert_eq!(admit(&mut destinations, Duration::ZERO), wait(WAIT.0));
        assert_eq!(admit(&mut destinations, seconds(20)), Ok(Sending::Try));
        assert_eq!(admit(&mut destinations, seconds(20)), wait(seconds(10)));
        assert_eq!(destinations.admit(&to("there"), start), Ok(Sending::Go));
        assert_eq!(
            destinations.refused(&to("missing"), "no queue", start + seconds(29)),
            Some(waits(Duration::from_millis(14_500)))
        );
        assert_eq!(destinations.gauge(&to("missing")).get(), 1);
        destinations.took([&to("missing")].into_iter(), start);
        assert_eq!(admit(&mut destinations, seconds(20)), Ok(Sending::Go));
        assert_eq!(destinations.gauge(&to("missing")).get(), 0);
    }

    #[test]
    fn after_the_grace_time_so_many_are_rejected_and_then_no_more() {
        let (mut destinations, start) = (destinations(), Instant::now());
        destinations.refused(&to("missing"), "no queue", start);
        let mut fates = |after| {
            let now = start + after;
            let tried = std::iter::repeat_with(|| destinations.admit(&to("missing"), now)).take(500);
            let tried = tried.filter(|admission| *admission == Ok(Sending::Try)).count();
            let rejected =
                (0..tried).filter(|_| destinations.refused(&to("missing"), "no queue", now).is_none()).count();
            (tried, rejected)
        };
        let most = REJECTIONS as usize;
        assert_eq!([seconds(40), seconds(41), seconds(60)].map(&mut fates), [(most, most), (0, 0), (1, 0)]);
    }

    #[test]
    fn an_operators_job_begins_the_outage_anew_but_for_the_rejections() {
        let (mut destinations, start) = (destinations(), Instant::now());
        destinations.refused(&to("missing"), "no queue", start);
        let admit = |destinations: &mut Destinations, after| destinations.admit(&to("missing"), start + after);
        for _ in 0..REJECTIONS {
            assert_eq!(admit(&mut destinations, seconds(600)), Ok(Sending::Try));
            assert_eq!(destinations.refused(&to("missing"), "no queue", start + seconds(600)), None);
        }
        assert_eq!(admit(&mut destinations, seconds(601)), Err(waits(WAIT.1)));
        destinations.context.controls.set_newest_job(7);
        assert_eq!(admit(&mut destinations, seconds(602)), Ok(Sending::Try));
        assert_eq!([602, 604].map(|at| admit(&mut destinations, seconds(at))), [Err(waits(WAIT.0)), Ok(Sending::Try)]);
        for after in [605, 605 + 31] {
            let held = destinations.refused(&to("missing"), "no queue", start + seconds(after));
            assert!(held.is_some(), "more were rejected");
        }
    }

    #[test]
    fn a_destination_that_nobody_uses_any_more_is_forgotten() {
        let (mut destinations, start) = (destinations(), Instant::now());
        destinations.refused(&to("missing"), "no queue", start);
        destinations.forget(start + REMEMBERED);
        assert_eq!(destinations.gauge(&to("missing")).get(), 1);
        destinations.forget(start + REMEMBERED + seconds(1));
        assert_eq!(destinations.gauge(&to("missing")).get(), 0);
        assert_eq!(destinations.refused(&to("missing"), "no queue", start + seconds(900)), Some(waits(WAIT.0)));
    }

    #[test]
    fn a_destination_is_silent_that_takes_nothing_while_others_do() {
        let (mut destinations, start) = (destinations(), Instant::now());
        let mut silent = |took: &[(&str, u64)]| {
            for (to_it, after) in took {
                destinations.took([&to(to_it)].into_iter(), start + seconds(*after));
            }
            destinations.confirmed_nothing(&to("silent"), start + seconds(5), "no queue", start + seconds(15));
            let admitted = destinations.admit(&to("silent"), start + seconds(15));
            admitted == Err(held("parked", WAIT.0))
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
        let (mut destinations, start) = (destinations(), Instant::now());
        destinations.took([&to("other")].into_iter(), start);
        destinations.confirmed_nothing(&to("silent"), start, "no queue", start);
        let later = start + seconds(600);
        let fates = [later, later + seconds(29), later + seconds(31)]
            .map(|now| destinations.refused(&to("silent"), "no queue", now));
        assert_eq!(fates, [Some(waits(WAIT.0)), Some(waits(Duration::from_millis(14_500))), None]);
    }
}
