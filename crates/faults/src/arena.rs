//! Where a case takes place: servers, a database, a topic, relays, the load; and the ending that is the same for all.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Uuid,
    sqlx::{self, Row as _},
};
use rand::{SeedableRng as _, rngs::StdRng};
use testkit::{
    consume::Topic,
    database::Database,
    inbox,
    judge::{Expectations, judge},
    ledger::Ledger,
    load::{Load, Running},
    proxy::Proxy,
    relay::{Metrics, Relay, Settings},
    servers::until,
};

use crate::{counts::Counts, ground::Ground, row::Case};

/// The lease of the relays here.
pub const LEASE: Duration = Duration::from_secs(3);
/// How long anything may take that has no bound of its own.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How hard a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// The standard load; the bounds on times are part of the verdict.
    Full,
    /// A third of the load, for continuous integration: there the machine is noisy, and times are only reported.
    Short,
}

/// What all runs share.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The relay's program: a debug build, for the crash points.
    pub relay: PathBuf,
    /// How hard.
    pub pace: Pace,
}

/// Where a case takes place.
pub struct Arena {
    /// The servers of its own.
    pub ground: Ground,
    /// The database.
    pub database: Database,
    /// The database as the producers reach it: the same, unless the case puts something in between.
    pub producers: Database,
    /// The topic, read by the judge past everything that is in between.
    pub topic: Topic,
    /// What the producers did.
    pub ledger: Ledger,
    /// The settings of relays to be started.
    pub settings: Settings,
    /// The relays that run.
    pub relays: Vec<Relay>,
    /// What stands in between, to the end.
    pub proxies: Vec<Arc<Proxy>>,
    /// What was counted so far.
    pub counts: Counts,
    /// What the case expects.
    pub expected: Expectations,
    /// Chance, from the seed.
    pub random: StdRng,
    /// What all runs share.
    pub setup: Setup,
    seed: u64,
    load: Option<Running>,
    retired: Vec<Metrics>,
    twice: Option<HashSet<Uuid>>,
}

impl Arena {
    /// Starts the servers of the case's own and makes a database and a topic.
    pub async fn new(case: &Case, setup: &Setup, seed: u64) -> Result<Self> {
        let ground = Ground::new(case).await?;
        let (database, topic) = (ground.database(case.flavor).await?, ground.topic(case.broker).await?);
        Ok(Self {
            settings: Settings::new(database.url()).with_broker_of(&topic),
            producers: database.clone(),
            ground,
            database,
            topic,
            ledger: Ledger::new(),
            relays: Vec::new(),
            proxies: Vec::new(),
            counts: Counts { runs: 1, ..Counts::default() },
            expected: Expectations::new().at_least(100),
            random: StdRng::seed_from_u64(seed),
            setup: setup.clone(),
            seed,
            load: None,
            retired: Vec::new(),
            twice: None,
        })
    }

    /// Starts so many relays with the settings as they are now.
    pub fn start_relays(&mut self, relays: usize) -> Result<()> {
        for _ in 0..relays {
            self.relays.push(self.relay(&self.settings)?);
        }
        Ok(())
    }

    /// Starts a relay that the case keeps for itself.
    pub fn relay(&self, settings: &Settings) -> Result<Relay> {
        Relay::start(&self.setup.relay, settings)
    }

    /// Starts the load.
    pub async fn start_load(&mut self) -> Result<()> {
        let load =
            Load::new(self.topic.name()).keys(200).tasks(4).transactions(u64::MAX).pause(Duration::from_millis(20));
        self.load = Some(load.seed(self.seed).start(&self.producers, &self.ledger).await?);
        Ok(())
    }

    /// Waits until every relay that runs has published something.
    pub async fn working(&mut self) -> Result<()> {
        for relay in &mut self.relays {
            relay.wait_for_metrics(PATIENCE, "work", |m| m.sum("outbox_relay_published_messages_total") > 0.0).await?;
        }
        Ok(())
    }

    /// A fault is about to strike: notes whether messages are in flight now.
    pub async fn strike(&mut self) -> Result<()> {
        let claims = self.database.number("SELECT COUNT(*) FROM outbox_claims").await?;
        self.struck(claims > 0);
        Ok(())
    }

    /// A fault has struck.
    pub fn struck(&mut self, in_flight: bool) {
        self.counts.faults += 1;
        self.counts.in_flight += u64::from(in_flight);
    }

    /// The messages that are claimed, or of these those that a relay holds.
    pub async fn claimed_by(&self, relay: Option<u32>) -> Result<HashSet<Uuid>> {
        let sql = "SELECT message_id FROM outbox_claimed_messages JOIN outbox_messages USING (id) WHERE owner LIKE ?";
        let owner = relay.map_or_else(|| "%".to_owned(), |pid| format!("%-{pid}/%"));
        let rows = sqlx::query(sql).bind(owner).fetch_all(&mut self.database.connect().await?).await?;
        rows.iter().map(|row| Uuid::from_slice(row.try_get(0)?).context("no UUID")).collect()
    }

    /// These messages may be sent twice, beside those of earlier calls; no others.
    pub fn may_be_sent_twice(&mut self, messages: HashSet<Uuid>) {
        self.twice.get_or_insert_default().extend(messages);
    }

    /// Waits until a relay that is dead has no claim left; returns how long it has been dead then.
    pub async fn taken_over(&mut self, pid: u32, died: Instant) -> Result<Duration> {
        let left = format!("SELECT COUNT(*) = 0 FROM outbox_claims WHERE owner LIKE '%-{pid}/%'");
        self.database.wait_for(PATIENCE, &left).await?;
        let after = died.elapsed();
        self.counts.recovered(after);
        Ok(after)
    }

    /// A bound on a time. It is part of the verdict where the machine is expected to be quiet.
    pub fn within(&self, what: &str, took: Duration, bound: Duration) -> Result<()> {
        ensure!(self.setup.pace == Pace::Short || took <= bound, "{what} took {took:.1?}, at most {bound:.1?} due");
        Ok(())
    }

    /// The sum of a metric over all relays, those that were retired included.
    pub async fn metric(&self, name: &str, labels: &str) -> f64 {
        let mut sum: f64 = self.retired.iter().map(|metrics| metrics.sum_where(name, labels)).sum();
        for relay in &self.relays {
            sum += relay.metrics().await.map_or(0.0, |metrics| metrics.sum_where(name, labels));
        }
        sum
    }

    /// Keeps the metrics of a relay that is about to end.
    pub async fn retire(&mut self, relay: &Relay) -> Result<()> {
        self.retired.push(relay.metrics().await?);
        Ok(())
    }

    /// Ends the load, waits for the backlog to drain, consumes everything through the inbox, and judges.
    pub async fn finish(mut self) -> Result<Counts> {
        if let Some(load) = self.load.take() {
            load.stop().await?;
        }
        self.database.wait_until_drained(PATIENCE).await?;
        self.gather().await?;
        let arrivals = self.topic.read().await?;
        inbox::process(&self.database, arrivals, 3).await?;
        let report = judge(&self.ledger.entries(), arrivals, &self.database.tables().await?);
        self.counts.messages += report.committed as u64;
        self.counts.duplicates += report.duplicates.len() as u64;
        let mut expected = self.expected.clone().witness("a fault", self.counts.faults > 0);
        if let Some(twice) = self.twice.take() {
            expected = expected.duplicates_among(twice);
        }
        report.assert_ok(&expected)?;
        self.remove().await
    }

    /// Adds up what the relays say of themselves.
    async fn gather(&mut self) -> Result<()> {
        for relay in &self.relays {
            let seen = async || relay.metrics().await;
            self.retired.push(until(PATIENCE, "a relay's metrics", seen).await?);
        }
        let sum = |name: &str, labels: &str| self.retired.iter().map(|it| it.sum_where(name, labels)).sum::<f64>();
        self.counts.takeovers += count(sum("outbox_relay_lease_takeovers_total", ""));
        self.counts.fenced += count(sum("outbox_relay_leases_lost_total", ""));
        for cause in ["takeover", "unconfirmed"] {
            let messages = count(sum("outbox_relay_possible_duplicates_total", &format!("cause=\"{cause}\"")));
            *self.counts.announced.entry(cause.to_owned()).or_default() += messages;
        }
        Ok(())
    }

    /// What is left on shared servers would slow the next case down.
    async fn remove(self) -> Result<Counts> {
        let Self { relays, database, topic, ground, counts, .. } = self;
        drop(relays);
        if ground.mysql.is_none() {
            database.remove().await?;
        }
        if ground.broker.is_none() {
            topic.remove().await?;
        }
        Ok(counts)
    }
}

/// A counter's value. Counters are whole numbers below 2^53.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters are whole and not negative")]
fn count(value: f64) -> u64 {
    value.round() as u64
}
