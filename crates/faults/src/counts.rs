//! The counts of a run.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::AddAssign,
    time::Duration,
};

use serde::Serialize;

/// The faults and observations of one run or of many.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counts {
    /// Runs.
    pub runs: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Messages whose transaction was committed.
    pub messages: u64,
    /// Messages that were committed on a server but not on the one that took its place.
    pub lost_by_server: u64,
    /// Faults.
    pub faults: u64,
    /// Of these, faults that struck while messages were claimed and not settled.
    pub in_flight: u64,
    /// Claims taken over.
    pub takeovers: u64,
    /// Claims that the fence refused to settle or renew.
    pub fenced: u64,
    /// Further deliveries by the relays, including messages whose sent marks the server lost.
    pub duplicates: u64,
    /// Messages that the relays said may be sent twice, by cause: at least as many as the duplicates.
    pub announced: BTreeMap<String, u64>,
    /// Metrics of relays that have moved.
    pub moved: BTreeSet<String>,
    /// Alerts that a case waited for, and after how many seconds they fired.
    pub alerts: Vec<(String, f64)>,
    /// All alerts that fired.
    pub fired: BTreeSet<String>,
    /// Seconds from the end of each fault to the recovery.
    pub recovery_seconds: Vec<f64>,
}

impl Counts {
    /// Adds the duration of a recovery.
    pub fn recovered(&mut self, after: Duration) {
        self.recovery_seconds.push(after.as_secs_f64());
    }

    /// The median recovery in seconds; `None` if nothing had to recover.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        let mut sorted = self.recovery_seconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }

    /// The longest recovery in seconds; `None` if nothing had to recover.
    #[must_use]
    pub fn slowest(&self) -> Option<f64> {
        self.recovery_seconds.iter().copied().reduce(f64::max)
    }
}

impl AddAssign<&Self> for Counts {
    fn add_assign(&mut self, other: &Self) {
        self.runs += other.runs;
        self.failed += other.failed;
        self.messages += other.messages;
        self.lost_by_server += other.lost_by_server;
        self.faults += other.faults;
        self.in_flight += other.in_flight;
        self.takeovers += other.takeovers;
        self.fenced += other.fenced;
        self.duplicates += other.duplicates;
        for (cause, messages) in &other.announced {
            *self.announced.entry(cause.clone()).or_default() += messages;
        }
        self.moved.extend(other.moved.iter().cloned());
        self.alerts.extend(other.alerts.iter().cloned());
        self.fired.extend(other.fired.iter().cloned());
        self.recovery_seconds.extend(&other.recovery_seconds);
    }
}
