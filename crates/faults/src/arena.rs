//! The environment of a case: servers, a database, a topic, relays, consumers, the load. The ending is in `ending.rs`.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use outbox_consumer::SequencePolicy;
use outbox_core::Uuid;
use rand::{RngExt as _, rngs::StdRng};
use testkit::{
    accounts::Account,
    chance,
    clock::Clock,
    consume::{Broker, Topic},
    database::Database,
    judge::{Expectations, Orders, Usage},
    ledger::Ledger,
    load::{Load, Running},
    proxy::Proxy,
    relay::{Metrics, Relay, Settings},
    servers::until,
};

pub use testkit::servers::PATIENCE;

use crate::{
    answers::Answers,
    consumer::{Consumers, Program},
    counts::Counts,
    ground::Ground,
    row::Case,
    watch::Watch,
};

/// The lease of the relays here; their deadlines are in proportion. Much shorter leases would run out where two cases
/// share two processors with all their servers. Rows would then fail for duplicates without a fault.
pub const LEASE: Duration = Duration::from_secs(6);
/// The time limit for the backlog to drain after the last fault.
const DRAINED: Duration = Duration::from_secs(60);
/// The time at which a loop of a relay last came round.
const LAST_SUCCESS: &str = "outbox_relay_loop_last_success_timestamp_seconds";
/// Relays and consumers of the standard load.
const RELAYS: usize = 3;
const CONSUMERS: usize = 3;

/// The pace of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// The standard load; bounds on times are part of the verdict.
    Full,
    /// A third of the load, for continuous integration: there the machine is noisy, and times are only reported.
    Short,
}

/// The settings that all runs share.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The relay's program: a debug build, for the crash points.
    pub relay: PathBuf,
    /// The program that becomes a consumer.
    pub consumer: Program,
    /// The pace.
    pub pace: Pace,
    /// How long a broker is down in B1.
    pub outage: Duration,
    /// How long N1 lasts.
    pub mix: Duration,
    /// Whether Prometheus and Alertmanager run beside each case.
    pub alerts: bool,
    /// By what the times of the alerts are divided.
    pub faster: u32,
}

/// The effects of a restore.
#[derive(Debug, Default)]
pub struct Restored {
    /// The messages that the database no longer has. They were judged before.
    pub forgotten: HashSet<Uuid>,
    /// The number of messages that are sent again.
    pub repeated: u64,
}

impl Restored {
    /// The messages sent again, as a cause of duplicates.
    pub(crate) fn announced(&self) -> Option<(String, u64)> {
        (self.repeated > 0).then(|| ("restore".to_owned(), self.repeated))
    }
}

/// The environment of a case.
pub struct Arena {
    /// The case's own servers.
    pub ground: Ground,
    /// The database.
    pub database: Database,
    /// The database as the producers reach it: the same, unless the case puts a proxy in between.
    pub producers: Database,
    /// The database of the consumers: the same, unless the case restores that one.
    pub inboxes: Database,
    /// The topic, which the judge reads past all proxies.
    pub topic: Topic,
    /// The ledger of the producers.
    pub ledger: Ledger,
    /// The account of the relays.
    pub account: Account,
    /// The settings of the next relays.
    pub settings: Settings,
    /// Transactions a second of the load.
    pub rate: f64,
    /// Bytes of its largest payload.
    pub largest: usize,
    /// Lanes of its keys.
    pub lanes: u16,
    /// The longest time that a transaction of the load stays open after its messages.
    pub held: Duration,
    /// The running relays.
    pub relays: Vec<Relay>,
    /// The running consumers.
    pub consumers: Option<Consumers>,
    /// The proxies, kept to the end.
    pub proxies: Vec<Arc<Proxy>>,
    /// The clocks of relays that differ from the machine's, kept to the end.
    pub clocks: Vec<Arc<Clock>>,
    /// The counts so far.
    pub counts: Counts,
    /// The expectations of the case.
    pub expected: Expectations,
    /// The orders of operators.
    pub orders: Orders,
    /// The answers to operators.
    pub answers: Answers,
    /// The number of faults that have to strike, or the run shows nothing.
    pub faults_due: u64,
    /// Whether a fault has to strike while messages are in flight, or the run shows nothing.
    pub in_flight_due: bool,
    /// Messages that a server lacked when it took another's place.
    pub lost: HashSet<Uuid>,
    /// Messages that such a server sends again, because it lacks their marks.
    pub sent_again: HashSet<Uuid>,
    /// Whether messages go to places that no consumer reads: the judge reads and processes them.
    pub past_consumers: bool,
    /// How consumers treat messages of sequenced keys that are out of order.
    pub sequence: SequencePolicy,
    /// The messages that a restore has removed, and those sent again.
    pub restored: Restored,
    /// The time limit for the backlog to drain after the last fault.
    pub drains_within: Duration,
    /// The resources used, against limits.
    pub usage: Vec<Usage>,
    /// Randomness, from the seed.
    pub random: StdRng,
    /// The settings that all runs share.
    pub setup: Setup,
    pub(crate) watch: Option<Arc<Watch>>,
    pub(crate) load: Option<Running>,
    pub(crate) retired: Vec<Metrics>,
    pub(crate) pages: Vec<String>,
    pub(crate) complete: bool,
    pub(crate) overdue: Vec<String>,
    pub(crate) panics: usize,
    pub(crate) twice: Option<HashSet<Uuid>>,
    pub(crate) seed: u64,
}

/// The account of the relays. Half of those without tails go without the optional privilege `PROCESS`.
fn account(tails: bool, broker: Broker) -> Account {
    match broker {
        _ if tails => Account::RelayWithTail,
        Broker::Kafka => Account::Relay,
        Broker::RabbitMq => Account::RelayWithProcess,
    }
}

impl Arena {
    /// Starts the case's own servers, and makes a database and a topic.
    pub async fn new(case: &Case, setup: &Setup, seed: u64) -> Result<Self> {
        let ground = Ground::new(case).await?;
        let database = ground.database(case.flavor).await?;
        let topic = ground.topic(case.broker).await?;
        let watch = if setup.alerts { Some(Watch::start(setup.faster).await?) } else { None };
        let mut random = chance::random(seed);
        // Half of the runs have tails.
        let account = account(random.random(), case.broker);
        Ok(Self {
            settings: Settings::new(&database.url_as(account)?)
                .with_broker_of(&topic)
                .set("relay", "lease", "6s")
                .set("relay", "publish_deadline", "2s")
                .set("relay", "settle_deadline", "1s"),
            account,
            producers: database.clone(),
            inboxes: database.clone(),
            ground,
            database,
            topic,
            ledger: Ledger::new(),
            rate: if setup.pace == Pace::Full { 300.0 } else { 100.0 },
            largest: 65_536,
            lanes: 1,
            held: Duration::ZERO,
            relays: Vec::new(),
            consumers: None,
            proxies: Vec::new(),
            clocks: Vec::new(),
            counts: Counts { runs: 1, ..Counts::default() },
            expected: Expectations::new().at_least(100),
            orders: Orders::default(),
            answers: Answers { words: case.told, ..Answers::default() },
            faults_due: 1,
            in_flight_due: true,
            lost: HashSet::new(),
            sent_again: HashSet::new(),
            past_consumers: false,
            sequence: SequencePolicy::Accept,
            restored: Restored::default(),
            drains_within: DRAINED,
            usage: Vec::new(),
            random,
            setup: setup.clone(),
            watch,
            load: None,
            retired: Vec::new(),
            pages: Vec::new(),
            complete: true,
            overdue: Vec::new(),
            panics: 0,
            twice: None,
            seed,
        })
    }

    /// Lets relays have tails, or not, whatever the seed says.
    pub fn with_tails(&mut self, tails: bool) -> Result<()> {
        self.account = account(tails, self.topic.broker());
        self.settings = self.settings.clone().set("database", "url", self.database.url_as(self.account)?);
        Ok(())
    }

    /// Whether a lane may have a tail: then one relay at a time publishes from it.
    #[must_use]
    pub fn has_tails(&self) -> bool {
        self.account == Account::RelayWithTail
    }

    /// Starts relays, consumers and the load, and waits until all of them work.
    pub async fn start(&mut self) -> Result<()> {
        self.start_relays(RELAYS)?;
        self.start_load().await?;
        self.working().await?;
        self.enough().await
    }

    /// Starts this number of relays with the current settings.
    pub fn start_relays(&mut self, relays: usize) -> Result<()> {
        for _ in 0..relays {
            self.relays.push(self.relay(&self.settings)?);
        }
        Ok(())
    }

    /// Starts a relay that the case itself keeps.
    pub fn relay(&self, settings: &Settings) -> Result<Relay> {
        self.relay_of(&self.setup.relay, settings)
    }

    /// Does the same with another program.
    pub fn relay_of(&self, program: &Path, settings: &Settings) -> Result<Relay> {
        let relay = Relay::start(program, settings)?;
        self.watch.as_ref().map_or(Ok(()), |watch| watch.relay(relay.port()))?;
        Ok(relay)
    }

    /// Starts the consumers, and the load.
    pub async fn start_load(&mut self) -> Result<()> {
        let consumers = Consumers::start(&self.setup.consumer, &self.topic, &self.inboxes, self.sequence, CONSUMERS);
        self.consumers = Some(consumers.await?);
        self.start_producers().await
    }

    /// Starts the load without consumers. A second load uses the keys of the first, which has ended.
    pub async fn start_producers(&mut self) -> Result<()> {
        let load = Load::standard(self.topic.name(), self.rate).payload(64..=self.largest).lanes(self.lanes);
        self.load = Some(load.held(self.held).seed(self.seed).start(&self.producers, &self.ledger).await?);
        Ok(())
    }

    /// Stops the load, if it runs.
    pub async fn stop_load(&mut self) -> Result<()> {
        match self.load.take() {
            Some(load) => load.stop().await,
            None => Ok(()),
        }
    }

    /// The consumers of the run.
    pub fn consumers(&mut self) -> Result<&mut Consumers> {
        self.consumers.as_mut().context("no consumers were started")
    }

    /// Waits until every running relay has published something, or has looked for messages of a lane that another has.
    pub async fn working(&mut self) -> Result<()> {
        let published = |m: &Metrics| m.sum("outbox_relay_published_messages_total") > 0.0;
        let looked = |m: &Metrics| m.sum_where("outbox_relay_claims_total", "result=\"empty\"") > 0.0;
        let tails = self.has_tails();
        for relay in &mut self.relays {
            relay.wait_for_metrics(PATIENCE, "work", |m| published(m) || tails && looked(m)).await?;
        }
        Ok(())
    }

    /// Waits until enough messages are sent for the run to show something.
    pub async fn enough(&self) -> Result<()> {
        until(PATIENCE, "a hundred messages", || async {
            let published = self.metric("outbox_relay_published_messages_total", "").await;
            ensure!(published > 150.0, "{published} are published");
            Ok(())
        })
        .await
    }

    /// Prepares for a fault: waits until messages are in flight. A tail counts: its owner may have taken any message.
    pub async fn strike(&mut self) -> Result<()> {
        self.database.wait_for(PATIENCE, "SELECT COUNT(*) FROM outbox_claims").await?;
        self.struck(true);
        Ok(())
    }

    /// Counts a fault that has struck.
    pub fn struck(&mut self, in_flight: bool) {
        self.counts.faults += 1;
        self.counts.in_flight += u64::from(in_flight);
    }

    /// Allows these messages to be sent twice, beside those of earlier calls, and no others.
    pub fn may_be_sent_twice(&mut self, messages: HashSet<Uuid>) {
        self.twice.get_or_insert_default().extend(messages);
    }

    /// Allows any message to be sent twice, if a relay announces it in its metrics.
    pub fn duplicates_are_announced(&mut self) {
        self.expected = self.expected.clone().duplicates(usize::MAX);
    }

    /// An event that must happen, or the run shows nothing.
    pub fn witness(&mut self, what: &str, happened: bool) {
        self.expected = self.expected.clone().witness(what, happened);
    }

    /// A bound on a time. Where the machine should be quiet, it is part of the verdict beside the judge's bounds.
    pub fn within(&mut self, what: &str, took: Duration, bound: Duration) {
        if self.setup.pace == Pace::Full && took > bound {
            self.overdue.push(format!("{what} took {took:.1?}, at most {bound:.1?} due"));
        }
    }

    /// A random time from `full`, or `short` in the short form.
    pub fn lasting(&mut self, full: std::ops::Range<u64>, short: u64) -> Duration {
        match self.setup.pace {
            Pace::Full => Duration::from_millis(self.random.random_range(full)),
            Pace::Short => Duration::from_millis(short),
        }
    }

    /// Waits, after a repair, until a message is published and every relay looks again, or renews the messages it
    /// holds. Then waits until every relay has published a message, if it has its turn: none may be left with a dead
    /// connection.
    pub async fn recovered(&mut self, healed: Instant, bound: Duration) -> Result<()> {
        // By the wall clock, as in the relays' gauges.
        let since = SystemTime::UNIX_EPOCH.elapsed()?.saturating_sub(healed.elapsed()).as_secs_f64();
        let mut before = Vec::new();
        for relay in &self.relays {
            // A relay that has just started does not listen yet.
            let metrics = relay.metrics_within(PATIENCE).await?;
            before.push(metrics.sum("outbox_relay_published_messages_total"));
        }
        let total: f64 = before.iter().sum();
        until(PATIENCE, "the first publish after the fault", || async {
            let mut now = 0.0;
            for relay in &self.relays {
                now += relay.metrics().await?.sum("outbox_relay_published_messages_total");
            }
            ensure!(now > total, "{now} were published before");
            Ok(())
        })
        .await?;
        let took = healed.elapsed();
        self.counts.recovered(took);
        self.within("the recovery", took, bound);
        let came_round = |m: &Metrics| {
            let came = |name: &str| m.sum_where(LAST_SUCCESS, &format!("loop=\"{name}\"")) > since;
            // A relay at its limit, for example with messages of a hot key, does not look for more.
            came("claim") || came("renew") && m.sum("outbox_relay_in_flight_messages") > 0.0
        };
        for relay in &mut self.relays {
            relay.wait_for_metrics(PATIENCE, "every relay to look for messages again", came_round).await?;
        }
        self.within("the recovery of every relay", healed.elapsed(), bound);
        self.explained().await?;
        if self.has_tails() {
            return Ok(());
        }
        for (relay, before) in self.relays.iter_mut().zip(before) {
            let more = |m: &Metrics| m.sum("outbox_relay_published_messages_total") > before;
            relay.wait_for_metrics(PATIENCE, "every relay to publish again", more).await?;
        }
        Ok(())
    }

    /// The sum of a metric over all relays, including retired ones.
    pub async fn metric(&self, name: &str, labels: &str) -> f64 {
        let mut sum: f64 = self.retired.iter().map(|metrics| metrics.sum_where(name, labels)).sum();
        for relay in &self.relays {
            sum += relay.metrics().await.map_or(0.0, |metrics| metrics.sum_where(name, labels));
        }
        sum
    }
}
