//! Prometheus and Alertmanager beside a case: which alerts fire, and when.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use testkit::servers::{Alertmanager, Prometheus, until};

use crate::arena::{Arena, PATIENCE};

/// The time limit for the alerts to end after the repair: for the relays, and for ranges of the rules, which are
/// divided. A relay remembers a destination that refused for five minutes, if another relay gets its messages.
const ENDS: Duration = Duration::from_mins(6);
const ENDS_DIVIDED: Duration = Duration::from_mins(30);
/// The alerts have ended when none has fired for this time.
const QUIET: Duration = Duration::from_secs(15);
/// The alerts that look back for hours: their end is not waited for.
const LONG: [&str; 3] = ["OutboxBudgetBurnsSlowly", "OutboxConsumerDeadMessages", "OutboxConsumerGap"];
/// The alert that fires until an operator has dealt with the messages.
const DEAD: &str = "OutboxDeadMessages";

/// An alert that a fault must raise, and its time limit.
pub(crate) type Due = (&'static str, Duration);

/// Prometheus, with the rules of `dashboards` at a faster pace, and the Alertmanager that it tells.
pub(crate) struct Watch {
    prometheus: Prometheus,
    alertmanager: Alertmanager,
    seen: Mutex<Seen>,
}

/// The processes that are read, and the alerts that may fire.
struct Seen {
    relays: Vec<u16>,
    consumers: Vec<u16>,
    due: BTreeSet<&'static str>,
    /// The time from which on no other may fire.
    since: Instant,
}

impl Watch {
    /// Starts both. They read nothing yet.
    pub(crate) async fn start(faster: u32) -> Result<Arc<Self>> {
        let prometheus = Prometheus::faster(&[], faster).await?;
        let alertmanager = Alertmanager::start().await?;
        prometheus.alert_to(&alertmanager)?;
        let relays = Vec::new();
        let consumers = Vec::new();
        let due = BTreeSet::new();
        let seen = Mutex::new(Seen { relays, consumers, due, since: Instant::now() });
        Ok(Arc::new(Self { prometheus, alertmanager, seen }))
    }

    /// Starts two relays with a load, and reads the consumer at this port. From then on, no alert may fire that is not
    /// due.
    pub(crate) async fn normal(arena: &mut Arena, consumer: Option<u16>) -> Result<Arc<Self>> {
        arena.start_relays(2)?;
        arena.start_load().await?;
        arena.working().await?;
        arena.enough().await?;
        let watch = Arc::clone(arena.watch.as_ref().context("only `--alerts` has this row")?);
        watch.seen().consumers.extend(consumer);
        watch.read()?;
        let and_up = if consumer.is_some() { " and on () up{job=\"shop\"} == 1" } else { "" };
        let ready = format!("count(outbox_queue_observed_timestamp_seconds > 0) == 2{and_up}");
        until(PATIENCE, "all to be read, and no alert", || async {
            let is_ready = !watch.prometheus.query(&ready).await?.is_empty();
            let firing = watch.prometheus.firing().await?;
            let active = watch.alertmanager.active().await?;
            ensure!(is_ready && firing.is_empty() && active.is_empty(), "{firing:?} fire, {active:?} are active");
            Ok(())
        })
        .await?;
        watch.seen().since = Instant::now();
        Ok(watch)
    }

    /// Also reads a relay at this port.
    pub(crate) fn relay(&self, port: u16) -> Result<()> {
        self.seen().relays.push(port);
        self.read()
    }

    /// Reads a relay no longer.
    pub(crate) fn no_relay(&self, port: u16) -> Result<()> {
        self.seen().relays.retain(|relay| *relay != port);
        self.read()
    }

    fn read(&self) -> Result<()> {
        let seen = self.seen();
        self.prometheus.read_from(&[("outbox", &seen.relays), ("shop", &seen.consumers)])
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until Alertmanager would send all these alerts, and notes after which time.
    pub(crate) async fn fires(&self, arena: &mut Arena, due: &[Due]) -> Result<()> {
        self.seen().due.extend(due.iter().map(|(alert, _)| *alert));
        let start = Instant::now();
        let found = Mutex::new(BTreeMap::new());
        let last = due.iter().map(|(_, within)| *within).max().unwrap_or_default();
        until(2 * last, "the alerts", || async {
            let active = self.alertmanager.active().await?;
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            for (alert, _) in due.iter().filter(|(alert, _)| active.contains(*alert)) {
                found.entry(*alert).or_insert_with(|| start.elapsed());
            }
            ensure!(found.len() == due.len(), "{active:?} are active, due are {due:?}");
            Ok(())
        })
        .await?;
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        for ((alert, within), took) in due.iter().filter_map(|due| Some((due, *found.get(due.0)?))) {
            arena.within(alert, took, *within);
            arena.counts.alerts.push(((*alert).to_owned(), took.as_secs_f64()));
        }
        Ok(())
    }

    /// Waits, after the repair, until no alert has fired for a while. None may have fired that was not due, but for
    /// `also`.
    pub(crate) async fn ends(&self, arena: &mut Arena, also: &[&str]) -> Result<()> {
        let mut lasting = LONG.to_vec();
        // No operator deals with the dead messages of a row that is not about them.
        lasting.extend(also.contains(&DEAD).then_some(DEAD));
        self.quiet(&lasting, QUIET, ENDS + ENDS_DIVIDED / arena.setup.faster).await?;
        let since = self.seen().since.elapsed();
        let fired = self.prometheus.fired(since).await?;
        let mut unexpected = fired.clone();
        unexpected.retain(|alert| !self.seen().due.contains(alert.as_str()) && !also.contains(&alert.as_str()));
        if let Some(alert) = unexpected.first() {
            let series = format!("max_over_time(ALERTS{{alertname=\"{alert}\"}}[1h])");
            bail!("{unexpected:?} fired, too: {:?}", self.prometheus.query(&series).await?);
        }
        arena.counts.fired.extend(fired);
        Ok(())
    }

    /// Waits until no alert but `lasting` ones has fired for this time.
    pub(crate) async fn quiet(&self, lasting: &[&str], time: Duration, within: Duration) -> Result<()> {
        let quiet = Mutex::new(Instant::now());
        until(within, "all alerts to end", || async {
            let mut firing = self.prometheus.firing().await?;
            firing.retain(|alert| !lasting.contains(&alert.as_str()));
            let mut quiet = quiet.lock().unwrap_or_else(PoisonError::into_inner);
            if !firing.is_empty() {
                *quiet = Instant::now();
            }
            ensure!(quiet.elapsed() > time, "{firing:?} fire, or did a moment ago");
            Ok(())
        })
        .await
    }
}
