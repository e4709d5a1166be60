//! Prometheus beside a case: which alerts fire, and when.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use testkit::{
    relay::Relay,
    servers::{Prometheus, until},
};

use crate::arena::{Arena, PATIENCE};

/// The time limit for the alerts to end after the repair: for the relays, and for ranges of the rules, which are divided.
/// A relay remembers a destination that refused for five minutes, if another relay gets its messages.
const ENDS: Duration = Duration::from_mins(6);
const ENDS_DIVIDED: Duration = Duration::from_mins(30);
/// The alerts have ended when none has fired for this time.
const QUIET: Duration = Duration::from_secs(15);
/// The alerts that look back for hours: their end is not waited for.
const LONG: [&str; 3] = ["OutboxBudgetBurnsSlowly", "OutboxConsumerDeadMessages", "OutboxConsumerGap"];

/// An alert that a fault must raise, and its time limit.
pub(crate) type Due = (&'static str, Duration);

/// Prometheus, with the rules of `dashboards` at a faster pace.
pub(crate) struct Watch {
    prometheus: Prometheus,
    /// The port of a consumer's metrics.
    consumer: Option<u16>,
    /// The alerts that were due.
    due: BTreeSet<&'static str>,
    /// The time from which on no other may fire.
    since: Instant,
}

impl Watch {
    /// Starts two relays with a load, and Prometheus, which reads them and the consumer at this port.
    pub(crate) async fn start(arena: &mut Arena, consumer: Option<u16>) -> Result<Self> {
        arena.start_relays(2)?;
        arena.start_load().await?;
        arena.working().await?;
        arena.enough().await?;
        let prometheus = Prometheus::faster(&[], arena.setup.faster).await?;
        let watch = Self { prometheus, consumer, due: BTreeSet::new(), since: Instant::now() };
        watch.read(arena)?;
        until(PATIENCE, "the relays to be read, and no alert", || async {
            let relays = watch.prometheus.query("count(outbox_queue_observed_timestamp_seconds > 0) == 2").await?;
            let firing = watch.prometheus.firing().await?;
            ensure!(relays.len() == 1 && firing.is_empty(), "{firing:?} fire");
            Ok(())
        })
        .await?;
        Ok(Self { since: Instant::now(), ..watch })
    }

    /// Reads the relays that run now.
    pub(crate) fn read(&self, arena: &Arena) -> Result<()> {
        let relays: Vec<_> = arena.relays.iter().map(Relay::port).collect();
        self.prometheus.read_from(&[("outbox", &relays), ("shop", self.consumer.as_slice())])
    }

    /// Waits until all these alerts fire, and notes after which time.
    pub(crate) async fn fires(&mut self, arena: &mut Arena, due: &[Due]) -> Result<()> {
        self.due.extend(due.iter().map(|(alert, _)| *alert));
        let (start, seen) = (Instant::now(), Mutex::new(BTreeMap::new()));
        let last = due.iter().map(|(_, within)| *within).max().unwrap_or_default();
        until(2 * last, "the alerts", || async {
            let firing = self.prometheus.firing().await?;
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            for (alert, _) in due.iter().filter(|(alert, _)| firing.contains(*alert)) {
                seen.entry(*alert).or_insert_with(|| start.elapsed());
            }
            ensure!(seen.len() == due.len(), "{firing:?} fire, due are {due:?}");
            Ok(())
        })
        .await?;
        let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
        for ((alert, within), took) in due.iter().filter_map(|due| Some((due, *seen.get(due.0)?))) {
            arena.within(alert, took, *within);
            arena.counts.alerts.push(((*alert).to_owned(), took.as_secs_f64()));
        }
        Ok(())
    }

    /// Waits, after the repair, until no alert has fired for a while. None may have fired that was not due, but for `also`.
    pub(crate) async fn ends(self, arena: &Arena, also: &[&str]) -> Result<()> {
        self.quiet(QUIET, ENDS + ENDS_DIVIDED / arena.setup.faster).await?;
        let fired = self.prometheus.fired(self.since.elapsed()).await?;
        let known = |alert: &str| self.due.contains(alert) || also.contains(&alert);
        let unexpected: Vec<_> = fired.iter().filter(|alert| !known(alert)).collect();
        ensure!(unexpected.is_empty(), "{unexpected:?} fired, too");
        Ok(())
    }

    /// Waits until no alert has fired for this time.
    pub(crate) async fn quiet(&self, time: Duration, within: Duration) -> Result<()> {
        let quiet = Mutex::new(Instant::now());
        until(within, "all alerts to end", || async {
            let mut firing = self.prometheus.firing().await?;
            firing.retain(|alert| !LONG.contains(&alert.as_str()));
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
