use std::time::{Duration, SystemTime};

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry};

/// Waits from milliseconds to days.
const AGES: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0, 3600.0, 86_400.0];

/// The metrics of consumers. Register them once in the service's own registry and give them to every consumer.
///
/// ```
/// let registry = prometheus::Registry::new();
/// let metrics = outbox_consumer::Metrics::register(&registry)?;
/// # Ok::<_, prometheus::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(crate) messages: IntCounterVec,
    pub(crate) age: HistogramVec,
    pub(crate) in_flight: IntGaugeVec,
    pub(crate) paused: IntGaugeVec,
    pub(crate) disconnects: IntCounterVec,
    pub(crate) window_short: IntGaugeVec,
    pub(crate) broker_events: IntCounterVec,
    pub(crate) sequence: IntCounterVec,
    pub(crate) purged: IntCounterVec,
}

impl Metrics {
    /// Makes the metrics and registers them. An error: the registry has them already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let vec = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(vec.clone()))?;
            Ok::<_, prometheus::Error>(vec)
        };
        let gauge = |name: &str, help: &str| {
            let vec = IntGaugeVec::new(Opts::new(name, help), &["consumer"])?;
            registry.register(Box::new(vec.clone()))?;
            Ok::<_, prometheus::Error>(vec)
        };
        let age = HistogramOpts::new(
            "outbox_inbox_message_age_seconds",
            "From the enqueue to the commit of the message's effect.",
        );
        let age = HistogramVec::new(age.buckets(AGES.to_vec()), &["consumer"])?;
        registry.register(Box::new(age.clone()))?;
        Ok(Self {
            messages: counter(
                "outbox_inbox_messages_total",
                "Deliveries by what became of them: first, duplicate, failed (tried again), snoozed, requeued, dead, \
                 late (older than the inbox remembers).",
                &["consumer", "result"],
            )?,
            age,
            in_flight: gauge("outbox_inbox_in_flight_messages", "Messages that were received and are not decided.")?,
            paused: gauge("outbox_inbox_paused_partitions", "Kafka partitions whose window is full.")?,
            disconnects: counter(
                "outbox_inbox_disconnects_total",
                "How often the connection to the broker ended, or was not reached.",
                &["consumer"],
            )?,
            broker_events: counter(
                "outbox_inbox_broker_events_total",
                "What keeps messages from coming, or brings them again: missing (a topic or a queue), unreadable (a \
                 partition), begun_anew (a partition, at an earlier offset).",
                &["consumer", "event"],
            )?,
            sequence: counter(
                "outbox_inbox_out_of_sequence_total",
                "Messages of sequenced keys that were not the next: gap, late, repeated.",
                &["consumer", "seen"],
            )?,
            purged: counter(
                "outbox_inbox_purged_rows_total",
                "Rows of the inbox that the purge of this process has deleted, of all consumers of the database.",
                &["consumer", "table"],
            )?,
            window_short: gauge(
                "outbox_inbox_window_too_short",
                "1: the broker can deliver a message again after the inbox has forgotten it.",
            )?,
        })
    }

    /// Metrics without a reader.
    pub(crate) fn unread() -> Self {
        #[expect(clippy::expect_used, reason = "the names are constants, and a new registry is empty")]
        Self::register(&Registry::new()).expect("the metrics are well formed")
    }

    /// Puts the series of a consumer at 0, so that a rate shows the first event after the first scrape. The exception
    /// is `window_short`: 0 would say that the topics were looked at.
    pub(crate) fn begin(&self, consumer: &str) {
        for (counter, values) in [
            (&self.messages, &["first", "duplicate", "failed", "snoozed", "requeued", "dead", "late"][..]),
            (&self.broker_events, &["missing", "unreadable", "begun_anew"]),
            (&self.sequence, &["gap", "late", "repeated"]),
            (&self.purged, &["inbox_processed", "inbox_dead", "inbox_sequence"]),
        ] {
            for value in values {
                drop(counter.with_label_values(&[consumer, value]));
            }
        }
        drop(self.disconnects.with_label_values(&[consumer]));
        drop(self.age.with_label_values(&[consumer]));
        for gauge in [&self.in_flight, &self.paused] {
            drop(gauge.with_label_values(&[consumer]));
        }
    }

    pub(crate) fn count(&self, consumer: &str, result: &str) {
        self.messages.with_label_values(&[consumer, result]).inc();
    }

    pub(crate) fn broker_event(&self, consumer: &str, event: &str) {
        self.broker_events.with_label_values(&[consumer, event]).inc();
    }

    pub(crate) fn age(&self, consumer: &str, enqueued_at: Option<SystemTime>) {
        let Some(age) = enqueued_at.and_then(age) else { return };
        self.age.with_label_values(&[consumer]).observe(age.as_secs_f64());
    }
}

/// The age of that time; `None` if it is in the future, by clocks that differ.
pub(crate) fn age(time: SystemTime) -> Option<Duration> {
    SystemTime::now().duration_since(time).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_lists_every_series_and_they_begin_at_0() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        metrics.begin("billing");
        metrics.window_short.with_label_values(&["billing"]).set(1);
        let readme = include_str!("../README.md");
        let families = registry.gather();
        for family in &families {
            let labels = |metric: &prometheus::proto::Metric| {
                metric
                    .get_label()
                    .iter()
                    .map(|label| (label.name().to_owned(), label.value().to_owned()))
                    .collect::<Vec<_>>()
            };
            let series: Vec<_> = family.get_metric().iter().map(labels).collect();
            let names: Vec<_> = series[0].iter().map(|(name, _)| name.as_str()).collect();
            let start = format!("| `{}{{{}}}` |", family.name(), names.join(","));
            let row = readme.lines().find(|line| line.starts_with(&start));
            let row = row.unwrap_or_else(|| panic!("no row of the README starts with {start}"));
            for (_, value) in series.iter().flatten().filter(|(name, _)| name != "consumer") {
                assert!(row.contains(&format!("`{value}`")), "the README does not name {value} of {}", family.name());
            }
        }
        assert_eq!(readme.lines().filter(|line| line.starts_with("| `outbox_inbox_")).count(), families.len());
        assert!(Metrics::register(&registry).is_err(), "they can be registered once");
    }
}
