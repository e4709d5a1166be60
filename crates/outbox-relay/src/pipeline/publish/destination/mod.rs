//! Destinations that take nothing although their sink can be reached. Examples are a topic unknown to one broker, a
//! partition without a leader, a queue whose node is down and a refused grant. Their messages wait, and no others wait
//! with them.
//!
//! If the broker refuses, no message is rejected within a grace time. After it a bounded number is rejected, so that an
//! operator notices. A refused grant must not make all enqueued messages dead, so from then on all wait. If the broker
//! only confirms nothing, no message is rejected. Some messages are tried from time to time, until the destination
//! takes one.
//!
//! If all destinations of a sink refuse, the relay's login has lost its rights, or another broker answers. No message
//! is rejected then, and the sink counts as taking nothing.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::store::reason::DelayReason;

use crate::{pipeline::retry::Disposition, sink::Destination, state::context::Context};

/// The reason of a refusal by which the relay may not write to a destination.
const FORBIDDEN: &str = "refused";
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
    reason: DelayReason,
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
    /// Whether the relay may not write to it, by the last refusal.
    is_forbidden: bool,
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
        let reason = if self.trouble == Sickness::Silent { DelayReason::Parked } else { DelayReason::Unroutable };
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
    /// The last confirmation of each destination, and of each sink. Those of 10,000 destinations at most are
    /// remembered.
    confirmed: HashMap<Arc<Destination>, Instant>,
    last_confirmed: HashMap<String, Instant>,
    /// The sinks of which all destinations refuse.
    refusing: HashSet<String>,
}

impl Destinations {
    /// Starts without any.
    #[must_use]
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self {
            context: Arc::clone(context),
            sick: HashMap::new(),
            confirmed: HashMap::new(),
            last_confirmed: HashMap::new(),
            refusing: HashSet::new(),
        }
    }

    /// Decides on a message that is ready to go out. The error says why it must wait.
    pub(crate) fn admit(&mut self, destination: &Destination, now: Instant) -> Result<Sending, HeldBack> {
        if self.sick.is_empty() {
            return Ok(Sending::Go);
        }
        let deadline = self.context.config.relay.publish_deadline;
        let Some(sick) = self.sick.get_mut(destination) else { return Ok(Sending::Go) };
        let newest = self.context.controls.newest_job();
        if sick.job != newest {
            sick.job = newest;
            // An operator who orders something may have removed the cause: it is as if the outage began now. A try of a
            // silent destination may still be in flight.
            if sick.trouble != Sickness::Silent {
                (sick.since, sick.next_try) = (now, now);
            }
        }
        let is_due = now >= sick.next_try;
        let rejects = is_due && self.rejects(destination, now);
        let Some(sick) = self.sick.get_mut(destination) else { return Ok(Sending::Go) };
        if is_due {
            // A try of a silent destination takes the whole deadline. The next try waits for its end.
            let least = if sick.trouble == Sickness::Silent { deadline + WAIT.0 } else { WAIT.0 };
            sick.next_try = now + sick.wait(now).max(least);
            sick.left = match sick.trouble {
                Sickness::Refuses { rejected } if rejects => REJECTIONS.saturating_sub(rejected).max(1),
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
                self.context.unproven.lock().remove(destination);
                let Destination { sink, target, .. } = &**destination;
                tracing::info!(sink, destination = target, "the destination takes messages again");
                self.gauge(destination).dec();
            }
            if self.refusing.remove(&destination.sink) {
                self.context.health.sink(&destination.sink, None);
            }
        }
    }

    /// Notes that a destination refused a message. Returns how the message is held back; `None` if it is rejected.
    pub(crate) fn refused(
        &mut self,
        destination: &Arc<Destination>,
        reason: &str,
        error: &str,
        now: Instant,
    ) -> Option<HeldBack> {
        let refuses = Sickness::Refuses { rejected: 0 };
        let Some(sick) = self.note(destination, refuses, error, now) else {
            return Some(HeldBack { wait: WAIT.1, reason: DelayReason::Unroutable, error: told(destination, error) });
        };
        sick.is_forbidden = reason == FORBIDDEN;
        if sick.trouble == Sickness::Silent {
            (sick.trouble, sick.since) = (refuses, now);
        }
        self.tell(destination, error);
        if !self.has_worked(destination) {
            let Destination { sink, target, .. } = &**destination;
            tracing::warn!(
                sink,
                destination = target,
                error,
                "the destination has never taken a message: create it, or bind a queue"
            );
        }
        let rejects = self.rejects(destination, now);
        let sick = self.sick.get_mut(destination)?;
        match &mut sick.trouble {
            Sickness::Refuses { rejected } if rejects && *rejected < REJECTIONS => {
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

    /// Whether messages of a destination that refuses are rejected: after its grace time, if it is not the whole sink
    /// that refuses.
    fn rejects(&self, destination: &Destination, now: Instant) -> bool {
        let relay = &self.context.config.relay;
        let longer = relay.first_destination_grace.max(relay.unroutable_grace);
        let grace = if self.has_worked(destination) { relay.unroutable_grace } else { longer };
        let is_over = |sick: &Sick| now - sick.since >= grace;
        self.sick.get(destination).is_some_and(is_over) && !self.all_refuse(destination)
    }

    /// Whether the destination has ever taken a message, as far as this process and the newest receipts tell.
    fn has_worked(&self, destination: &Destination) -> bool {
        let is_proven = || self.context.unproven.lock().get(destination).copied().flatten();
        self.confirmed.contains_key(destination) || is_proven().unwrap_or(false)
    }

    /// Whether all destinations of the sink refuse: none has taken a message since this one refuses, and others refuse,
    /// too. A single one may be missing for a reason of its own, but a grant is never refused because of a message.
    fn all_refuse(&self, destination: &Destination) -> bool {
        let Some(sick) = self.sick.get(destination) else { return false };
        let takes = self.last_confirmed.get(&destination.sink).is_some_and(|at| *at >= sick.since);
        let refuses = |it: &Destination, sick: &Sick| it.sink == destination.sink && sick.trouble != Sickness::Silent;
        let refusing = self.sick.iter().filter(|(it, sick)| refuses(it, sick));
        !takes && (sick.is_forbidden || refusing.take(2).count() > 1)
    }

    /// Says that a sink takes nothing, if all its destinations refuse.
    fn tell(&mut self, destination: &Destination, error: &str) {
        if !self.all_refuse(destination) {
            return;
        }
        let sink = &destination.sink;
        self.context.health.sink(sink, Some(format!("all destinations in use refuse their messages: {error}")));
        if self.refusing.insert(sink.clone()) {
            tracing::error!(sink, error, "all destinations of the sink refuse their messages: none is rejected for it");
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
            if !self.confirmed.contains_key(destination) {
                self.context.unproven.lock().insert(Arc::clone(destination), None);
            }
            let error = told(destination, error);
            let job = self.context.controls.newest_job();
            let is_forbidden = false;
            let next_try = now + WAIT.0;
            let sick = Sick { trouble, is_forbidden, since: now, last: now, error, next_try, left: 0, job };
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
    }

    fn drop_if(&mut self, is_over: impl Fn(&Destination, &Sick) -> bool) {
        let over: Vec<_> = self.sick.iter().filter(|(it, sick)| is_over(it, sick)).map(|it| it.0.clone()).collect();
        for destination in over {
            self.sick.remove(&destination);
            self.context.unproven.lock().remove(&destination);
            self.gauge(&destination).dec();
        }
        for sink in self.refusing.extract_if(|sink| !self.sick.keys().any(|it| it.sink == *sink)) {
            self.context.health.sink(&sink, None);
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
mod tests;
