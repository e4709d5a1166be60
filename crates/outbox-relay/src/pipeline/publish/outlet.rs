//! The sinks as the publisher uses them: the ready messages of each, those in flight, and whether it is up.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{mpsc, watch};

use crate::{
    pipeline::{
        publish::{
            batch::{Batch, Done, load},
            item::{Item, Tag},
            room::Room,
        },
        retry::{DelayReason, Disposition},
    },
    sink::{Feed, KeyOrder, Outgoing, PublishError},
    state::{backoff::Backoff, context::Context},
};

struct Outlet {
    feed: Feed,
    ready: VecDeque<Item>,
    on_the_way: usize,
    room: Room,
    up: bool,
    /// Outages in a row, without a message confirmed between them, and when they began.
    outages: u32,
    since: Instant,
}

impl Outlet {
    /// Returns the number of messages that the sink would take now.
    fn next_size(&mut self) -> usize {
        let most = if self.up && self.on_the_way < self.feed.batches { self.feed.batch } else { 0 };
        self.room.fits(self.ready.iter().take(most).map(load), Instant::now())
    }
}

/// All sinks.
pub struct Outlets {
    context: Arc<Context>,
    outlets: Vec<Outlet>,
    names: HashMap<String, usize>,
    /// Outlets whose sink can be reached.
    reached: mpsc::UnboundedSender<usize>,
    open: watch::Sender<bool>,
}

/// The shortest and the longest wait of a message whose sink is down, if there are other sinks.
const PARKED: Duration = Duration::from_secs(5);
const LONGEST_PARKED: Duration = Duration::from_secs(60);
/// First pause between two checks of a sink that is down.
const FIRST_PROBE_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between two checks of a sink that is down.
const MAX_PROBE_PAUSE: Duration = Duration::from_secs(5);

impl Outlets {
    /// Takes all sinks, each down until it is `reached`. `open` tells the claimers whether any is up.
    #[must_use]
    pub fn new(
        context: &Arc<Context>,
        feeds: Vec<Feed>,
        reached: mpsc::UnboundedSender<usize>,
        open: watch::Sender<bool>,
    ) -> Self {
        let names = feeds.iter().enumerate().map(|(i, feed)| (feed.name.clone(), i)).collect();
        let connected = &context.metrics.sink_connected;
        for feed in &feeds {
            connected.with_label_values(&[feed.name.as_str()]).set(0);
        }
        let outlet = |feed: Feed| {
            let ready = VecDeque::new();
            let since = Instant::now();
            let room = Room::new(context.config.relay.publish_deadline);
            Outlet { feed, ready, on_the_way: 0, room, up: false, outages: 0, since }
        };
        let outlets = feeds.into_iter().map(outlet).collect::<Vec<_>>();
        let outlets = Self { context: Arc::clone(context), outlets, names, reached, open };
        (0..outlets.outlets.len()).for_each(|i| outlets.probe(i));
        outlets
    }

    /// Returns the outlet of a sink. Routes name only existing sinks, as the relay checks when it is made. Any other
    /// sink has no outlet: its messages wait as if it were down, and never go to another one.
    #[must_use]
    pub fn find(&self, sink: &str) -> usize {
        self.names.get(sink).copied().unwrap_or(usize::MAX)
    }

    /// Returns how much of the order of this message's key its sink keeps by itself.
    #[must_use]
    pub fn key_order(&self, outlet: usize, message: &Outgoing) -> KeyOrder {
        self.outlets.get(outlet).map_or(KeyOrder::OneInFlight, |outlet| outlet.feed.sink.key_order(message))
    }

    /// Queues a message; returns false if its sink is down.
    pub fn push(&mut self, item: Item) -> bool {
        let up = self.outlets.get_mut(item.tag.outlet).filter(|outlet| outlet.up);
        up.map(|outlet| outlet.ready.push_back(item)).is_some()
    }

    /// Returns the name of a sink.
    #[must_use]
    pub fn name(&self, outlet: usize) -> &str {
        self.outlets.get(outlet).map_or("", |outlet| &outlet.feed.name)
    }

    /// Returns the outcome of a message whose sink is down. With one sink it is released, and nothing is claimed until
    /// the sink is up. With several it is parked, so that it is not claimed repeatedly in front of others. The wait
    /// grows with the outage, because ever more messages are parked.
    #[must_use]
    pub fn when_unavailable(&self, outlet: usize) -> Disposition {
        if self.outlets.len() > 1 {
            let outage = self.outlets.get(outlet).map_or(Duration::ZERO, |outlet| outlet.since.elapsed());
            return Disposition::Delay { wait: parked(outage), spent: false, reason: DelayReason::Parked };
        }
        Disposition::Release
    }

    /// Returns the next batch that a sink would take.
    pub fn next_batch(&mut self) -> Option<Batch> {
        let sizes = self.outlets.iter_mut().map(Outlet::next_size);
        let (i, size) = sizes.enumerate().find(|(_, size)| *size > 0)?;
        let outlet = self.outlets.get_mut(i)?;
        Some(Batch { outlet: i, items: outlet.ready.drain(..size).collect(), is_try: false })
    }

    /// Publishes a batch.
    pub fn publish(&mut self, mut batch: Batch) -> impl Future<Output = Done> + Send + 'static + use<> {
        let sink = self.outlets.get_mut(batch.outlet).map(|outlet| {
            if !batch.is_try {
                outlet.on_the_way += 1;
                let messages = batch.items.len();
                let load = batch.items.iter().map(load).sum();
                let progress = outlet.room.take(messages, load, Instant::now());
                batch.items.iter_mut().for_each(|item| item.outgoing.progress = Some(progress.clone()));
            }
            Arc::clone(&outlet.feed.sink)
        });
        let deadline = Instant::now() + self.context.config.relay.publish_deadline;
        batch.publish(sink, deadline)
    }

    /// Notes the outcome of a batch, for the metrics and for the state of the sink.
    pub fn note(&mut self, done: &Done) {
        let Some(outlet) = self.outlets.get_mut(done.outlet) else { return };
        let metrics = &self.context.metrics;
        let name = outlet.feed.name.as_str();
        metrics.publish_duration_seconds.with_label_values(&[name]).observe(done.took.as_secs_f64());
        for (target, messages, bytes) in &done.counts {
            metrics
                .publish_attempts_total
                .with_label_values(&[name, metrics.destination(target)])
                .inc_by(*messages as u64);
            metrics.published_bytes_total.with_label_values(&[name]).inc_by(*bytes as u64);
        }
        let mut confirmed = 0;
        let mut unconfirmed = 0;
        let mut down = None;
        for (tag, destination, outcome) in &done.outcomes {
            match outcome {
                Ok(receipt) => {
                    confirmed += 1;
                    if receipt.resent {
                        metrics.possible_duplicates_total.with_label_values(&["resent"]).inc();
                    }
                    metrics.delivery_latency_seconds.observe(tag.due_at.elapsed().as_secs_f64());
                }
                Err(PublishError::Unavailable(reason)) => down = Some(reason.clone()),
                Err(PublishError::Unconfirmed(_)) => {
                    unconfirmed += 1;
                    metrics.possible_duplicates_total.with_label_values(&["unconfirmed"]).inc();
                }
                Err(PublishError::TurnedAway(_) | PublishError::Rejected { .. } | PublishError::Unroutable { .. }) => {}
            }
            if let Err(error) = outcome {
                let labels = [name, metrics.destination(&destination.target), error.reason()];
                metrics.publish_failures_total.with_label_values(&labels).inc();
            }
        }
        metrics.published_messages_total.with_label_values(&[name]).inc_by(confirmed as u64);
        if confirmed > 0 {
            outlet.outages = 0;
        }
        // A try does not show how much the sink takes.
        if let Some(progress) = &done.progress {
            outlet.on_the_way -= 1;
            let is_late = unconfirmed > 0 && done.is_late(self.context.config.relay.publish_deadline);
            outlet.room.give_back(progress, confirmed, is_late, Instant::now());
        }
        if let Some(reason) = down {
            self.down(done.outlet, &reason);
        }
    }

    fn down(&mut self, i: usize, reason: &str) {
        let Some(outlet) = self.outlets.get_mut(i).filter(|outlet| outlet.up) else { return };
        outlet.up = false;
        if outlet.outages == 0 {
            outlet.since = Instant::now();
        }
        outlet.outages += 1;
        let name = outlet.feed.name.clone();
        tracing::warn!(sink = name, reason, "the sink is unavailable");
        self.context.metrics.sink_connected.with_label_values(&[name.as_str()]).set(0);
        self.context.health.sink(&name, Some(reason.to_owned()));
        self.tell();
        self.probe(i);
    }

    /// Notes that a sink was reached.
    pub fn up(&mut self, i: usize) {
        let Some(outlet) = self.outlets.get_mut(i) else { return };
        outlet.up = true;
        let name = outlet.feed.name.as_str();
        tracing::info!(sink = name, "the sink is available");
        self.context.metrics.sink_connected.with_label_values(&[name]).set(1);
        self.context.health.sink(name, None);
        self.tell();
    }

    fn tell(&self) {
        self.open.send_replace(self.outlets.iter().any(|outlet| outlet.up));
    }

    /// Checks a sink until it can be reached.
    fn probe(&self, i: usize) {
        let Some(outlet) = self.outlets.get(i) else { return };
        let sink = Arc::clone(&outlet.feed.sink);
        let name = outlet.feed.name.clone();
        let context = Arc::clone(&self.context);
        let reached = self.reached.clone();
        let mut pauses = Backoff::new(FIRST_PROBE_PAUSE, MAX_PROBE_PAUSE);
        // A sink that repeatedly answers and then takes nothing is checked less and less often.
        let mut pause = (0..outlet.outages.min(10)).map(|_| pauses.next()).last().unwrap_or_default();
        tokio::spawn(async move {
            while context.sleep(pause).await {
                match sink.check(Instant::now() + context.config.relay.publish_deadline).await {
                    Ok(()) => {
                        // No receiver: the relay is ending.
                        reached.send(i).ok();
                        break;
                    }
                    Err(error) => {
                        tracing::warn!(sink = name, %error, "the sink cannot be reached; trying again");
                        context.health.sink(&name, Some(error.to_string()));
                    }
                }
                pause = pauses.next();
            }
        });
    }

    /// Takes out the messages of sinks that have gone down.
    pub fn refused(&mut self) -> Vec<Item> {
        self.outlets.iter_mut().filter(|outlet| !outlet.up).flat_map(|outlet| outlet.ready.drain(..)).collect()
    }

    /// Takes out the waiting messages with a matching tag.
    pub fn take(&mut self, meant: impl Fn(&Tag) -> bool) -> Vec<Item> {
        let mut taken = Vec::new();
        for outlet in &mut self.outlets {
            if outlet.ready.iter().any(|item| meant(&item.tag)) {
                let (these, rest) = outlet.ready.drain(..).partition(|item| meant(&item.tag));
                outlet.ready = rest;
                taken.extend::<VecDeque<_>>(these);
            }
        }
        taken
    }

    /// Whether messages wait for room: a confirm may make room before its batch ends.
    #[must_use]
    pub fn want_room(&self) -> bool {
        let wants = |it: &Outlet| it.up && !it.ready.is_empty() && it.on_the_way < it.feed.batches;
        self.outlets.iter().any(wants)
    }

    /// Whether messages wait here.
    #[must_use]
    pub fn waiting(&self) -> bool {
        self.outlets.iter().any(|outlet| !outlet.ready.is_empty())
    }

    /// Takes out all waiting messages.
    pub fn drain(&mut self) -> Vec<Item> {
        self.outlets.iter_mut().flat_map(|outlet| outlet.ready.drain(..)).collect()
    }

    /// Closes all sinks.
    pub async fn close(&self) {
        for outlet in &self.outlets {
            outlet.feed.sink.close().await;
        }
    }
}

/// Returns the wait of a message that is parked: half of the outage so far, so that it lengthens its outage by half at
/// most.
fn parked(outage: Duration) -> Duration {
    (outage / 2).clamp(PARKED, LONGEST_PARKED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_an_outage_the_longer_a_message_is_parked_up_to_a_minute() {
        let parked = [0, 9, 40, 119, 9_999].map(|seconds| parked(Duration::from_secs(seconds)).as_millis());
        assert_eq!(parked, [5_000, 5_000, 20_000, 59_500, 60_000]);
    }
}
