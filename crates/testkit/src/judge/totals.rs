//! Compares the counts of relays and consumers with the findings (I12); checks the relays' resource use (I11) and
//! output (I13).

use std::collections::BTreeMap;

use super::Report;
use crate::relay::Metrics;

/// The sums of the counters of all relays of a run.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Messages handed to sinks.
    pub attempts: u64,
    /// Messages that brokers confirmed.
    pub published: u64,
    /// Messages that the broker may or may not have.
    pub uncertain: u64,
    /// Dead messages, by reason.
    pub dead: BTreeMap<String, u64>,
    /// Messages that may have been sent twice, by cause.
    pub announced: BTreeMap<String, u64>,
    /// Claims taken over.
    pub takeovers: u64,
    /// Claims lost to another relay.
    pub fenced: u64,
    /// Whether every relay's final counts were read: only then must the totals be exact.
    pub complete: bool,
}

impl Totals {
    /// Adds up the metrics.
    #[must_use]
    pub fn of(metrics: &[Metrics], complete: bool) -> Self {
        let sum = |name: &str, labels: &str| count(metrics.iter().map(|it| it.sum_where(name, labels)).sum());
        let by = |name: &str, label: &str| {
            let mut all = BTreeMap::new();
            for (value, amount) in metrics.iter().flat_map(|it| it.by(name, label)) {
                *all.entry(value).or_insert(0) += count(amount);
            }
            all
        };
        let failures = |reason: &str| sum("outbox_relay_publish_failures_total", &format!("reason=\"{reason}\""));
        Self {
            attempts: sum("outbox_relay_publish_attempts_total", ""),
            published: sum("outbox_relay_published_messages_total", ""),
            uncertain: failures("unconfirmed"),
            dead: by("outbox_relay_dead_messages_total", "reason"),
            announced: by("outbox_relay_possible_duplicates_total", "cause"),
            takeovers: sum("outbox_relay_lease_takeovers_total", ""),
            fenced: sum("outbox_relay_leases_lost_total", ""),
            complete,
        }
    }

    /// The number of messages that may have been sent twice because an answer was late, though no process died. These
    /// were not confirmed in time, or, if a relay lost its own claims, were taken over.
    #[must_use]
    pub fn late(&self) -> usize {
        let counts = |cause: &&str| *cause != "takeover" || self.fenced > 0;
        let late = self.announced.iter().filter(|(cause, _)| counts(&cause.as_str())).map(|(_, messages)| messages);
        usize::try_from(late.sum::<u64>()).unwrap_or(usize::MAX)
    }
}

/// The sums of the counters of all consumers of a run.
#[derive(Debug, Clone, Default)]
pub struct Consumed {
    /// Messages that took effect.
    pub first: u64,
    /// Messages that had already taken effect.
    pub duplicate: u64,
    /// Failed attempts that are made again.
    pub failed: u64,
    /// Messages that are dead, or left to other consumers.
    pub refused: u64,
    /// Whether every consumer's final counts were read.
    pub complete: bool,
}

impl Consumed {
    /// Adds up the metrics.
    #[must_use]
    pub fn of(metrics: &[Metrics], complete: bool) -> Self {
        let sum = |result: &str| {
            let labels = format!("result=\"{result}\"");
            count(metrics.iter().map(|it| it.sum_where("outbox_inbox_messages_total", &labels)).sum())
        };
        Self {
            first: sum("first"),
            duplicate: sum("duplicate"),
            failed: sum("failed"),
            refused: sum("dead") + sum("requeued"),
            complete,
        }
    }
}

/// The resource use of a relay.
#[derive(Debug, Clone)]
pub struct Usage {
    /// The resource, for example `open descriptors`.
    pub what: String,
    /// The use.
    pub used: u64,
    /// The limit.
    pub limit: u64,
}

impl Report {
    /// Compares the relays' counters with the findings.
    #[must_use]
    pub fn with_totals(mut self, totals: &Totals) -> Self {
        let replayed: u64 = self.replayed.values().sum();
        let deliveries = (self.arrived + self.duplicates.len()) as u64 + replayed;
        let announced: u64 = totals.announced.values().sum();
        let duplicates = self.duplicates.len() as u64;
        self.check(duplicates <= announced, || format!("{duplicates} duplicates, {announced} announced"));
        if totals.complete {
            let published = totals.published;
            let uncertain = totals.uncertain;
            let attempts = totals.attempts;
            let range = published..=published + uncertain;
            self.check(range.contains(&deliveries), || {
                format!("{deliveries} deliveries, {published} published and {uncertain} uncertain")
            });
            self.check(deliveries <= attempts, || format!("{deliveries} deliveries, {attempts} attempts"));
            let mut dead: BTreeMap<String, u64> = BTreeMap::new();
            self.dead.values().for_each(|reason| *dead.entry(reason.clone()).or_default() += 1);
            self.check(dead == totals.dead, || format!("dead {dead:?}, counted {:?}", totals.dead));
        }
        self
    }

    /// Compares the consumers' counters with the effects, and with the minimum of their deliveries.
    #[must_use]
    pub fn with_consumed(mut self, consumed: &Consumed, effects: usize, deliveries: u64) -> Self {
        let effects = effects as u64;
        let &Consumed { first, duplicate, failed, refused, complete } = consumed;
        self.check(first <= effects, || format!("{effects} effects, {first} counted"));
        self.check(refused == 0, || format!("consumers counted {refused} messages as dead or requeued"));
        if complete {
            // A commit without an answer counts as failed, and later as a duplicate.
            let unanswered = failed.min(duplicate);
            self.check(effects - first.min(effects) <= unanswered, || {
                format!("{effects} effects, {first} counted, {failed} failed, {duplicate} duplicate")
            });
            self.check(deliveries <= first + duplicate, || {
                format!("{deliveries} deliveries, {first} and {duplicate} duplicates counted")
            });
        }
        self
    }

    /// Notes each use above its limit.
    #[must_use]
    pub fn with_usage(mut self, usage: &[Usage]) -> Self {
        let above = usage.iter().filter(|usage| usage.used > usage.limit);
        self.excesses.extend(above.map(|usage| format!("{}: {}, at most {}", usage.what, usage.used, usage.limit)));
        self
    }

    /// Searches the output for texts that must be in no log, metric or error.
    #[must_use]
    pub fn with_pages(mut self, pages: &[String], secrets: &[&str]) -> Self {
        let lines = pages.iter().flat_map(|page| page.lines());
        let leaks = lines.filter(|line| secrets.iter().any(|secret| line.contains(secret)));
        self.leaks.extend(leaks.map(str::to_owned));
        self
    }

    pub(super) fn check(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.miscounts.push(otherwise());
        }
    }
}

/// Counters are whole numbers below 2^53.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters are whole and not negative")]
fn count(value: f64) -> u64 {
    value.round() as u64
}
