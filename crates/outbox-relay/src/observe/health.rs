//! The answers of `/livez` and `/readyz`.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;

use crate::observe::metrics::Metrics;

/// A loop that did not come round for this duration is stuck.
const STUCK: Duration = Duration::from_secs(60);

/// The state of a relay's own loops and of its dependencies.
pub struct Health {
    metrics: Arc<Metrics>,
    loops: Mutex<BTreeMap<&'static str, Instant>>,
    /// The database, and the relay itself.
    dependencies: Mutex<BTreeMap<&'static str, Result<(), String>>>,
    /// Each with the reason why it takes nothing.
    sinks: Mutex<BTreeMap<String, Option<String>>>,
    /// The lanes that this relay tails, or the reason why it tails none.
    tail: Mutex<Option<String>>,
    /// The last refusal of the database, and its time.
    refused: Mutex<Option<(Instant, String)>>,
}

/// The time for which a refusal is reported. It is longer than the pause between two calls that write while there is
/// nothing to send.
const REFUSED: Duration = Duration::from_secs(15);

impl Health {
    /// Starts without any knowledge: ready only after the database has answered.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        let starting = ("database", Err("not reached yet".to_owned()));
        Arc::new(Self {
            metrics,
            loops: Mutex::default(),
            dependencies: Mutex::new([starting].into()),
            sinks: Mutex::default(),
            tail: Mutex::default(),
            refused: Mutex::default(),
        })
    }

    /// Notes that a loop came round.
    pub fn loop_ok(&self, name: &'static str) {
        self.loops.lock().insert(name, Instant::now());
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        self.metrics.loop_last_success_timestamp_seconds.with_label_values(&[name]).set(now.as_secs_f64());
    }

    /// Makes a loop one that has not come round for long: for tests.
    #[doc(hidden)]
    pub fn stall(&self, name: &'static str) {
        let now = Instant::now();
        self.loops.lock().insert(name, now.checked_sub(2 * STUCK).unwrap_or(now));
    }

    /// Notes that the database, or the relay itself, works, or why not. The relay is ready if all of them do.
    pub fn dependency(&self, name: &'static str, state: Result<(), String>) {
        if name == "database" {
            if state.is_err() {
                // An earlier refusal says nothing about a server that does not answer.
                *self.refused.lock() = None;
            }
            self.metrics.database_connected.set(i64::from(state.is_ok()));
        }
        self.dependencies.lock().insert(name, state);
    }

    /// Notes that a sink takes messages, or why it takes nothing. The relay is ready in either case.
    pub fn sink(&self, name: &str, trouble: Option<String>) {
        let mut sinks = self.sinks.lock();
        match sinks.get_mut(name) {
            Some(known) => *known = trouble,
            None => drop(sinks.insert(name.to_owned(), trouble)),
        }
    }

    /// Returns the sinks that were used, each with the reason why it takes nothing.
    #[must_use]
    pub fn sinks(&self) -> BTreeMap<String, Option<String>> {
        self.sinks.lock().clone()
    }

    /// Returns the sinks that take nothing, each with the reason.
    pub fn sinks_down(&self) -> Vec<String> {
        let sinks = self.sinks.lock();
        sinks.iter().filter_map(|(name, trouble)| Some(format!("sink {name}: {}", trouble.as_ref()?))).collect()
    }

    /// Notes which lanes this relay tails, or why none.
    pub(crate) fn tail(&self, told: Option<String>) {
        *self.tail.lock() = told;
    }

    /// Returns which lanes this relay tails, or why none. `None`: there was no reason for a tail yet.
    pub(crate) fn told(&self) -> Option<String> {
        self.tail.lock().clone()
    }

    /// Notes that the database refused a call, though it answers others: for example, it is read-only.
    pub fn refused(&self, reason: String) {
        *self.refused.lock() = Some((Instant::now(), reason));
    }

    /// Returns the loops that have not come round for a minute. `claim`, `settle`, `stats` and `purge` may be idle and
    /// do not count.
    #[must_use]
    pub fn stuck(&self) -> Vec<String> {
        let loops = self.loops.lock();
        let stuck = |(name, at): (&&'static str, &Instant)| {
            let idle = matches!(*name, "claim" | "settle" | "stats" | "purge");
            (!idle && at.elapsed() > STUCK)
                .then(|| format!("the loop {name} has not come round for {} s", at.elapsed().as_secs()))
        };
        loops.iter().filter_map(stuck).collect()
    }

    /// Returns why the relay is not ready; empty if it is. A relay whose database answers, and has the tables, is
    /// ready.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let refused = self.refused.lock();
        let refused = refused.iter().filter(|(at, _)| at.elapsed() < REFUSED);
        let refused: Vec<_> = refused.map(|(_, reason)| format!("database: {reason}")).collect();
        let dependencies = self.dependencies.lock();
        // A connection that was lost and a login that is refused are one trouble, and the refusal is the later one.
        let is_shown = |name: &str| name != "database" || refused.is_empty();
        let down = dependencies.iter().filter(|(name, _)| is_shown(name));
        let down = down.filter_map(|(name, state)| Some(format!("{name}: {}", state.as_ref().err()?)));
        down.chain(refused.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_troubles_of_the_database_the_last_is_told() {
        let health = Health::new(Metrics::new().unwrap());
        health.dependency("database", Ok(()));
        assert!(health.reasons().is_empty());
        health.refused("read-only".to_owned());
        assert_eq!(health.reasons(), ["database: read-only"]);
        health.dependency("database", Err("no answer".to_owned()));
        assert_eq!(health.reasons(), ["database: no answer"]);
        health.dependency("relay", Err("stopping".to_owned()));
        health.refused("login refused".to_owned());
        assert_eq!(health.reasons(), ["relay: stopping", "database: login refused"]);
    }
}
