//! The costs of a run: CPU time from /proc, statements and round trips.

use std::{fs, time::Instant};

use testkit::usage::TICKS;

/// The costs so far: CPU in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    pub(crate) at: Instant,
    pub(crate) relay: f64,
    pub(crate) mysql: f64,
    pub(crate) broker: f64,
    pub(crate) own: f64,
    pub(crate) machine: f64,
    pub(crate) statements: f64,
    pub(crate) round_trips: f64,
}

/// The costs between two times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spent {
    pub(crate) seconds: f64,
    pub(crate) relay: f64,
    pub(crate) mysql: f64,
    pub(crate) broker: f64,
    others: f64,
    pub(crate) statements: f64,
    pub(crate) round_trips: f64,
}

impl Costs {
    pub(crate) fn since(&self, before: &Self) -> Spent {
        let [relay, mysql, broker] =
            [self.relay - before.relay, self.mysql - before.mysql, self.broker - before.broker];
        let known = relay + mysql + broker + self.own - before.own;
        Spent {
            seconds: (self.at - before.at).as_secs_f64().max(0.001),
            relay,
            mysql,
            broker,
            others: (self.machine - before.machine - known).max(0.0),
            statements: self.statements - before.statements,
            round_trips: self.round_trips - before.round_trips,
        }
    }
}

impl Spent {
    /// CPU seconds as percent of one core.
    pub(crate) fn percent(&self, cpu: f64) -> f64 {
        cpu * 100.0 / self.seconds
    }

    /// CPU of processes outside the measurement, the hypervisor included, in percent of one core. Distrust a run in
    /// which it is large.
    pub(crate) fn others_percent(&self) -> f64 {
        self.percent(self.others)
    }
}

/// Busy CPU seconds of all cores so far, including those that the hypervisor took.
pub(crate) fn machine_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    busy(stat.lines().next().unwrap_or_default()) / TICKS
}

/// user, nice, system, (idle, iowait,) irq, softirq, steal; the fields after these are already in user.
fn busy(line: &str) -> f64 {
    let fields = numbers(line.strip_prefix("cpu").unwrap_or_default());
    fields.iter().take(3).chain(fields.iter().skip(5).take(3)).sum()
}

fn numbers(text: &str) -> Vec<f64> {
    text.split_whitespace().map(|field| field.parse().unwrap_or(0.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::busy;

    #[test]
    fn idle_time_and_guests_are_not_busy() {
        assert!((busy("cpu  1 2 4 1000 2000 8 16 32 64 128") - 63.0).abs() < 1e-9);
    }
}
