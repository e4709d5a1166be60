//! Destinations that take nothing, though their sink can be reached: a topic that one broker does not know yet, a queue whose node is
//! away, a grant that is refused. Their messages wait, and nobody else waits with them.
//!
//! Within a grace time no message is rejected. After it a bounded number is, so that somebody looks; a refused grant must not bury
//! everything that is enqueued. From then on all wait. Now and then some messages are tried, until the destination takes one.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{context::Context, sink::Destination};

/// Most messages of one destination that are rejected before it takes one again.
const REJECTIONS: u32 = 100;
/// The shortest and the longest time between two tries, and for which a message waits.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// For how long a destination that is not tried any more is remembered.
const REMEMBERED: Duration = Duration::from_secs(300);
/// Most destinations that are remembered: a routing key can have as many as there are message keys. Messages of others wait and are not rejected.
const MOST: usize = 10_000;

/// How a message may go to its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// With others.
    Go,
    /// In a batch without messages for sound destinations: on RabbitMQ a refused grant ends the channel.
    Try,
}

/// A destination that takes nothing.
#[derive(Debug)]
struct Sick {
    since: Instant,
    /// When a message was last refused, and why.
    last: Instant,
    error: Arc<str>,
    next_try: Instant,
    /// How many messages may go before the next try.
    left: u32,
    rejected: u32,
}

impl Sick {
    /// Half of the outage so far, so that a message that waits is written only a few times, however long it lasts.
    fn wait(&self, now: Instant) -> Duration {
        ((now - self.since) / 2).clamp(WAIT.0, WAIT.1)
    }
}

/// The destinations that take nothing.
pub(crate) struct Destinations {
    context: Arc<Context>,
    sick: HashMap<Arc<Destination>, Sick>,
}

impl Destinations {
    /// None yet.
    #[must_use]
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context), sick: HashMap::new() }
    }

    /// Decides over a message that is ready to go out; the error says how long it has to wait, and what was wrong with the last one.
    pub(crate) fn admit(&mut self, destination: &Destination, now: Instant) -> Result<Admission, (Duration, Arc<str>)> {
        if self.sick.is_empty() {
            return Ok(Admission::Go);
        }
        let grace = self.context.config.relay.unroutable_grace;
        let Some(sick) = self.sick.get_mut(destination) else { return Ok(Admission::Go) };
        let wait = sick.wait(now);
        if now >= sick.next_try {
            sick.next_try = now + wait;
            sick.left = if now - sick.since < grace { 1 } else { REJECTIONS.saturating_sub(sick.rejected).max(1) };
        }
        if sick.left == 0 {
            return Err((wait, Arc::clone(&sick.error)));
        }
        sick.left -= 1;
        Ok(Admission::Try)
    }

    /// A destination has taken a message.
    pub(crate) fn took(&mut self, destination: &Destination) {
        if !self.sick.is_empty() && self.sick.remove(destination).is_some() {
            let Destination { sink, target, .. } = destination;
            tracing::info!(sink, destination = target, "the destination takes messages again");
            self.gauge(destination).dec();
        }
    }

    /// A destination has refused a message: for how long it waits, or none if it is rejected.
    pub(crate) fn refused(&mut self, destination: &Arc<Destination>, error: &str, now: Instant) -> Option<Duration> {
        if !self.sick.contains_key(destination) && !self.note(destination, error, now) {
            return Some(WAIT.1);
        }
        let grace = self.context.config.relay.unroutable_grace;
        let sick = self.sick.get_mut(destination)?;
        (sick.last, sick.error) = (now, error.into());
        if now - sick.since < grace || sick.rejected >= REJECTIONS {
            return Some(sick.wait(now));
        }
        sick.rejected += 1;
        if sick.rejected == REJECTIONS {
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

    /// Remembers a destination, if there is room for it.
    fn note(&mut self, destination: &Arc<Destination>, error: &str, now: Instant) -> bool {
        if self.sick.len() >= MOST {
            return false;
        }
        let Destination { sink, target, .. } = &**destination;
        tracing::warn!(sink, destination = target, error, "the destination refuses messages: they wait");
        self.gauge(destination).inc();
        let next_try = now + WAIT.0;
        let sick = Sick { since: now, last: now, error: error.into(), next_try, left: 0, rejected: 0 };
        self.sick.insert(Arc::clone(destination), sick);
        true
    }

    /// Forgets the destinations that were not tried for a while: nothing waits for them any more.
    pub(crate) fn forget(&mut self, now: Instant) {
        let old: Vec<_> =
            self.sick.iter().filter(|(_, sick)| now - sick.last > REMEMBERED).map(|it| it.0.clone()).collect();
        for destination in old {
            self.sick.remove(&destination);
            self.gauge(&destination).dec();
        }
    }

    fn gauge(&self, destination: &Destination) -> prometheus::IntGauge {
        let labels = [destination.sink.as_str(), destination.target.as_str()];
        self.context.metrics.refusing_destinations.with_label_values(&labels)
    }
}

#[cfg(test)]
mod tests {
    use super::{Admission, Destination, Destinations, Duration, Instant, REJECTIONS, REMEMBERED, WAIT};
    use crate::run::without_database;

    fn to(routing_key: &str) -> std::sync::Arc<Destination> {
        let routing_key = routing_key.to_owned();
        Destination { sink: "rabbitmq".to_owned(), target: "orders".to_owned(), routing_key }.into()
    }

    fn destinations() -> Destinations {
        Destinations::new(&without_database(Vec::new()).context)
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn within_the_grace_time_one_message_at_a_time_is_tried_and_none_is_rejected() {
        let (mut destinations, start) = (destinations(), Instant::now());
        assert_eq!(destinations.refused(&to("missing"), "no queue", start), Some(WAIT.0));
        let admit = |destinations: &mut Destinations, after| destinations.admit(&to("missing"), start + after);
        let wait = |wait| Err((wait, "no queue".into()));
        assert_eq!(admit(&mut destinations, Duration::ZERO), wait(WAIT.0));
        assert_eq!(admit(&mut destinations, seconds(20)), Ok(Admission::Try));
        assert_eq!(admit(&mut destinations, seconds(20)), wait(seconds(10)));
        assert_eq!(destinations.admit(&to("there"), start), Ok(Admission::Go));
        assert_eq!(
            destinations.refused(&to("missing"), "no queue", start + seconds(29)),
            Some(Duration::from_millis(14_500))
        );
        assert_eq!(destinations.gauge(&to("missing")).get(), 1);
        destinations.took(&to("missing"));
        assert_eq!(admit(&mut destinations, seconds(20)), Ok(Admission::Go));
        assert_eq!(destinations.gauge(&to("missing")).get(), 0);
    }

    #[test]
    fn after_the_grace_time_so_many_are_rejected_and_then_no_more() {
        let (mut destinations, start) = (destinations(), Instant::now());
        destinations.refused(&to("missing"), "no queue", start);
        let mut fates = |after| {
            let now = start + after;
            let tried = std::iter::repeat_with(|| destinations.admit(&to("missing"), now)).take(500);
            let tried = tried.filter(|admission| *admission == Ok(Admission::Try)).count();
            let rejected =
                (0..tried).filter(|_| destinations.refused(&to("missing"), "no queue", now).is_none()).count();
            (tried, rejected)
        };
        let most = REJECTIONS as usize;
        assert_eq!([seconds(40), seconds(41), seconds(60)].map(&mut fates), [(most, most), (0, 0), (1, 0)]);
    }

    #[test]
    fn a_destination_that_nobody_uses_any_more_is_forgotten() {
        let (mut destinations, start) = (destinations(), Instant::now());
        destinations.refused(&to("missing"), "no queue", start);
        destinations.forget(start + REMEMBERED);
        assert_eq!(destinations.gauge(&to("missing")).get(), 1);
        destinations.forget(start + REMEMBERED + seconds(1));
        assert_eq!(destinations.gauge(&to("missing")).get(), 0);
        assert_eq!(destinations.refused(&to("missing"), "no queue", start + seconds(900)), Some(WAIT.0));
    }
}
