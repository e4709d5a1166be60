//! The metrics, under the names of docs/metrics.md.

mod table;

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;
use prometheus::{
    Encoder as _, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder, core::Collector, process_collector::ProcessCollector,
};

pub use self::table::{METRICS, Metric};

/// Most destinations that have series of their own; all others together are `other`. Routes can name one for each
/// topic.
const DESTINATIONS: usize = 200;

const FAST: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const LATENCY: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0];

/// The metrics of one relay. Each field is named like its metric, without `outbox_relay_`.
#[expect(missing_docs, reason = "`METRICS` says what each means")]
pub struct Metrics {
    registry: Registry,
    destinations: Mutex<HashSet<String>>,
    pub claims_total: IntCounterVec,
    pub claimed_messages_total: IntCounter,
    pub claim_duration_seconds: Histogram,
    pub publish_attempts_total: IntCounterVec,
    pub publish_failures_total: IntCounterVec,
    pub published_messages_total: IntCounterVec,
    pub published_bytes_total: IntCounterVec,
    pub publish_duration_seconds: HistogramVec,
    pub delivery_latency_seconds: Histogram,
    pub settle_duration_seconds: HistogramVec,
    pub in_flight_messages: IntGauge,
    pub retries_scheduled_total: IntCounterVec,
    pub dead_messages_total: IntCounterVec,
    pub lease_renewals_total: IntCounterVec,
    pub lease_takeovers_total: IntCounter,
    pub leases_lost_total: IntCounter,
    pub late_commits_total: IntCounter,
    pub possible_duplicates_total: IntCounterVec,
    pub lanes: IntGauge,
    pub tailed_lanes: IntGauge,
    pub tail_ends_total: IntCounterVec,
    pub tail_missed_total: IntCounter,
    pub sink_connected: IntGaugeVec,
    pub paused: IntGaugeVec,
    pub refusing_destinations: IntGaugeVec,
    pub database_connected: IntGauge,
    pub db_call_duration_seconds: HistogramVec,
    pub db_errors_total: IntCounterVec,
    pub loop_last_success_timestamp_seconds: GaugeVec,
    pub canary_last_return_timestamp_seconds: GaugeVec,
    pub canary_last_duration_seconds: GaugeVec,
    pub purged_messages_total: IntCounterVec,
    pub inbox_window_too_short: IntGauge,
    pub queue: QueueMetrics,
}

/// The content of the tables.
#[expect(missing_docs, reason = "`METRICS` says what each means")]
#[non_exhaustive]
pub struct QueueMetrics {
    pub messages: IntGaugeVec,
    pub lag_seconds: GaugeVec,
    pub stalled_lanes: IntGaugeVec,
    pub blocked_keys: IntGauge,
    pub next_dead_purge_timestamp_seconds: Gauge,
    pub expired_leases: IntGauge,
    pub instances: IntGaugeVec,
    pub observed_timestamp_seconds: Gauge,
}

/// Makes metrics from the table.
struct Maker(Registry);

impl Maker {
    fn opts(name: &str) -> Result<(Opts, &'static [&'static str]), prometheus::Error> {
        let found = METRICS.iter().find(|metric| metric.name == name);
        let metric = found.ok_or_else(|| prometheus::Error::Msg(format!("{name} is not in the table")))?;
        Ok((Opts::new(metric.name, metric.help), metric.labels))
    }

    fn add<C: Collector + Clone + 'static>(&self, collector: C) -> Result<C, prometheus::Error> {
        self.0.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    fn counter(&self, name: &str) -> Result<IntCounter, prometheus::Error> {
        self.add(IntCounter::with_opts(Self::opts(name)?.0)?)
    }

    fn counters(&self, name: &str) -> Result<IntCounterVec, prometheus::Error> {
        let (opts, labels) = Self::opts(name)?;
        self.add(IntCounterVec::new(opts, labels)?)
    }

    fn gauge(&self, name: &str) -> Result<IntGauge, prometheus::Error> {
        self.add(IntGauge::with_opts(Self::opts(name)?.0)?)
    }

    fn gauges(&self, name: &str) -> Result<IntGaugeVec, prometheus::Error> {
        let (opts, labels) = Self::opts(name)?;
        self.add(IntGaugeVec::new(opts, labels)?)
    }

    fn real_gauge(&self, name: &str) -> Result<Gauge, prometheus::Error> {
        self.add(Gauge::with_opts(Self::opts(name)?.0)?)
    }

    fn real_gauges(&self, name: &str) -> Result<GaugeVec, prometheus::Error> {
        let (opts, labels) = Self::opts(name)?;
        self.add(GaugeVec::new(opts, labels)?)
    }

    fn histogram(&self, name: &str, buckets: &[f64]) -> Result<Histogram, prometheus::Error> {
        let opts = HistogramOpts::from(Self::opts(name)?.0).buckets(buckets.to_vec());
        self.add(Histogram::with_opts(opts)?)
    }

    fn histograms(&self, name: &str, buckets: &[f64]) -> Result<HistogramVec, prometheus::Error> {
        let (opts, labels) = Self::opts(name)?;
        self.add(HistogramVec::new(HistogramOpts::from(opts).buckets(buckets.to_vec()), labels)?)
    }
}

impl Metrics {
    /// All metrics, at zero. Fails only if the table and this function disagree, which a test finds.
    pub fn new() -> Result<Arc<Self>, prometheus::Error> {
        let make = Maker(Registry::new());
        make.0.register(Box::new(ProcessCollector::for_self()))?;
        make.gauges("outbox_relay_build_info")?.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let metrics = Self {
            claims_total: make.counters("outbox_relay_claims_total")?,
            claimed_messages_total: make.counter("outbox_relay_claimed_messages_total")?,
            claim_duration_seconds: make.histogram("outbox_relay_claim_duration_seconds", &FAST)?,
            publish_attempts_total: make.counters("outbox_relay_publish_attempts_total")?,
            publish_failures_total: make.counters("outbox_relay_publish_failures_total")?,
            published_messages_total: make.counters("outbox_relay_published_messages_total")?,
            published_bytes_total: make.counters("outbox_relay_published_bytes_total")?,
            publish_duration_seconds: make.histograms("outbox_relay_publish_duration_seconds", &FAST)?,
            delivery_latency_seconds: make.histogram("outbox_relay_delivery_latency_seconds", &LATENCY)?,
            settle_duration_seconds: make.histograms("outbox_relay_settle_duration_seconds", &FAST)?,
            in_flight_messages: make.gauge("outbox_relay_in_flight_messages")?,
            retries_scheduled_total: make.counters("outbox_relay_retries_scheduled_total")?,
            dead_messages_total: make.counters("outbox_relay_dead_messages_total")?,
            lease_renewals_total: make.counters("outbox_relay_lease_renewals_total")?,
            lease_takeovers_total: make.counter("outbox_relay_lease_takeovers_total")?,
            leases_lost_total: make.counter("outbox_relay_leases_lost_total")?,
            late_commits_total: make.counter("outbox_relay_late_commits_total")?,
            possible_duplicates_total: make.counters("outbox_relay_possible_duplicates_total")?,
            lanes: make.gauge("outbox_relay_lanes")?,
            tailed_lanes: make.gauge("outbox_relay_tailed_lanes")?,
            tail_ends_total: make.counters("outbox_relay_tail_ends_total")?,
            tail_missed_total: make.counter("outbox_relay_tail_missed_total")?,
            sink_connected: make.gauges("outbox_relay_sink_connected")?,
            paused: make.gauges("outbox_relay_paused")?,
            refusing_destinations: make.gauges("outbox_relay_refusing_destinations")?,
            database_connected: make.gauge("outbox_relay_database_connected")?,
            db_call_duration_seconds: make.histograms("outbox_relay_db_call_duration_seconds", &FAST)?,
            db_errors_total: make.counters("outbox_relay_db_errors_total")?,
            loop_last_success_timestamp_seconds: make
                .real_gauges("outbox_relay_loop_last_success_timestamp_seconds")?,
            canary_last_return_timestamp_seconds: make
                .real_gauges("outbox_relay_canary_last_return_timestamp_seconds")?,
            canary_last_duration_seconds: make.real_gauges("outbox_relay_canary_last_duration_seconds")?,
            purged_messages_total: make.counters("outbox_relay_purged_messages_total")?,
            inbox_window_too_short: make.gauge("outbox_relay_inbox_window_too_short")?,
            queue: QueueMetrics {
                messages: make.gauges("outbox_queue_messages")?,
                lag_seconds: make.real_gauges("outbox_queue_lag_seconds")?,
                next_dead_purge_timestamp_seconds: make.real_gauge("outbox_queue_next_dead_purge_timestamp_seconds")?,
                stalled_lanes: make.gauges("outbox_queue_stalled_lanes")?,
                blocked_keys: make.gauge("outbox_queue_blocked_keys")?,
                expired_leases: make.gauge("outbox_queue_expired_leases")?,
                instances: make.gauges("outbox_relay_instances")?,
                observed_timestamp_seconds: make.real_gauge("outbox_queue_observed_timestamp_seconds")?,
            },
            registry: make.0,
            destinations: Mutex::default(),
        };
        metrics.start_at_zero();
        Ok(Arc::new(metrics))
    }

    /// Makes series whose labels are known, so that a rate shows the first increment.
    fn start_at_zero(&self) {
        for (counter, values) in [
            (&self.claims_total, &["claimed", "empty", "conflict", "error"][..]),
            (&self.lease_renewals_total, &["renewed", "lost", "error", "locked"]),
            (&self.possible_duplicates_total, &["takeover", "unconfirmed", "resent"]),
            (
                &self.purged_messages_total,
                &["outbox_messages", "outbox_dead", "inbox_processed", "outbox_jobs", "outbox_audit"],
            ),
        ] {
            for value in values {
                drop(counter.with_label_values(&[value]));
            }
        }
    }

    /// Returns the label of a destination: its name, or `other` if 200 others have series.
    pub(crate) fn destination<'a>(&self, name: &'a str) -> &'a str {
        let mut known = self.destinations.lock();
        let has_room = known.len() < DESTINATIONS;
        if known.contains(name) || has_room && known.insert(name.to_owned()) { name } else { "other" }
    }

    /// All metrics in the text format of Prometheus.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = Vec::new();
        match TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            Ok(()) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => format!("# {error}\n"),
        }
    }
}

/// docs/metrics.md: a table of all metrics.
#[doc(hidden)]
#[must_use]
pub fn reference() -> String {
    let mut text = String::from(
        "# Metrics\n\nAt `/metrics`, with `process_*` of the process. One relay counts the queue every 8 s, and every \
         relay shows its numbers: use `max`, never `sum`.\n\n| metric | type | labels | what it means \
         |\n|---|---|---|---|\n",
    );
    for metric in METRICS {
        let row = format!("| `{}` | {} | {} | {} |\n", metric.name, metric.kind, metric.labels.join(", "), metric.help);
        text.push_str(&row);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn destinations_beyond_the_limit_share_a_label() {
        let metrics = Metrics::new().unwrap();
        let names: Vec<_> = (0..=DESTINATIONS).map(|number| format!("orders-{number}")).collect();
        let labels: Vec<_> = names.iter().map(|name| metrics.destination(name)).collect();
        assert_eq!(labels[..DESTINATIONS], names[..DESTINATIONS]);
        assert_eq!(labels[DESTINATIONS], "other");
        assert_eq!(metrics.destination(&names[0]), names[0]);
    }

    #[test]
    fn every_metric_of_the_table_is_made_and_no_other() {
        let metrics = Metrics::new().unwrap();
        let made = include_str!("mod.rs");
        assert!(metrics.render().contains("outbox_relay_build_info"));
        for metric in METRICS {
            assert!(made.contains(&format!("\"{}\"", metric.name)), "{} is in the table and nowhere else", metric.name);
        }
        let names: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
    }
}
