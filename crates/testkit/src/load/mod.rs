//! Producers: tasks that commit business rows with their messages, roll a share back, and write the ledger.

mod producer;
mod zipf;

use std::{
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use tokio::task::JoinSet;

use self::producer::Producer;
pub use self::producer::{commit, insert_business_rows};
use crate::{database::Database, ledger::Ledger};

/// What producers do. The defaults: 4 tasks, 20 keys, 200 transactions of 1 to 3 messages of 64 to 1,024 bytes, a tenth
/// rolled back, as fast as they can.
#[derive(Debug, Clone)]
pub struct Load {
    topic: String,
    tasks: u64,
    keys: u64,
    transactions: u64,
    messages: RangeInclusive<u64>,
    payload: RangeInclusive<usize>,
    rolled_back: f64,
    pause: Duration,
    held: Duration,
    rate: Option<f64>,
    zipf: bool,
    sequenced: Option<u64>,
    cancelled: f64,
    lane: u16,
    seed: u64,
    keys_of: Option<u64>,
}

/// At the start of every payload that is long enough: it must be in no log.
pub const CANARY: &str = "canary of the load ";

impl Load {
    /// A load for this topic with the defaults.
    #[must_use]
    pub fn new(topic: &str) -> Self {
        Self {
            topic: topic.to_owned(),
            tasks: 4,
            keys: 20,
            transactions: 200,
            messages: 1..=3,
            payload: 64..=1024,
            rolled_back: 0.1,
            pause: Duration::ZERO,
            held: Duration::ZERO,
            rate: None,
            zipf: false,
            sequenced: None,
            cancelled: 0.0,
            lane: 0,
            seed: 1,
            keys_of: None,
        }
    }

    /// The load under which faults strike: so many transactions a second until it is stopped, of 1 to 3 messages of 64 B to
    /// 64 KiB, small ones as likely as large ones on a logarithmic scale; 200 keys, of which few are much in use; a tenth
    /// rolled back, a fiftieth of the handlers cancelled midway; every tenth key is sequenced, the one most in use among them.
    #[must_use]
    pub fn standard(topic: &str, rate: f64) -> Self {
        let load = Self::new(topic).tasks(16).keys(200).transactions(u64::MAX).payload(64..=65_536);
        Self { rate: Some(rate), zipf: true, sequenced: Some(10), cancelled: 0.02, ..load }
    }

    /// So many producers at a time.
    #[must_use]
    pub fn tasks(mut self, tasks: u64) -> Self {
        self.tasks = tasks;
        self
    }

    /// So many keys, each the key of a business row.
    #[must_use]
    pub fn keys(mut self, keys: u64) -> Self {
        self.keys = keys;
        self
    }

    /// Ends after so many transactions, those that were rolled back included.
    #[must_use]
    pub fn transactions(mut self, transactions: u64) -> Self {
        self.transactions = transactions;
        self
    }

    /// So many messages in each transaction.
    #[must_use]
    pub fn messages(mut self, messages: RangeInclusive<u64>) -> Self {
        self.messages = messages;
        self
    }

    /// Bytes of a payload.
    #[must_use]
    pub fn payload(mut self, bytes: RangeInclusive<usize>) -> Self {
        self.payload = bytes;
        self
    }

    /// This share of the transactions is rolled back.
    #[must_use]
    pub fn rolled_back(mut self, share: f64) -> Self {
        self.rolled_back = share;
        self
    }

    /// Each producer waits this long after each transaction.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Transactions stay open for up to this long after they have enqueued, so that lower ids commit after higher ones.
    #[must_use]
    pub fn held(mut self, longest: Duration) -> Self {
        self.held = longest;
        self
    }

    /// The lane of all messages.
    #[must_use]
    pub fn lane(mut self, lane: u16) -> Self {
        self.lane = lane;
        self
    }

    /// Two loads of one database at a time need different seeds: the keys are taken from it, too. One after the other goes on with
    /// the keys of the first.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The keys of the load with this seed, which was started before.
    #[must_use]
    pub fn keys_of(mut self, seed: u64) -> Self {
        self.keys_of = Some(seed);
        self
    }

    /// Starts the producers.
    ///
    /// # Errors
    /// When the business rows cannot be made.
    pub async fn start(self, database: &Database, ledger: &Ledger) -> Result<Running> {
        if self.keys_of.is_none() {
            let first = self.first_key();
            let rows: Vec<String> = (first..first + self.keys).map(|id| format!("({id}, 0)")).collect();
            database
                .execute(&format!("INSERT IGNORE INTO test_keys (id, sequence) VALUES {}", rows.join(", ")))
                .await?;
        }
        let (load, stop, begun) = (Arc::new(self), Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for number in 0..load.tasks {
            let mut producer = Producer::new(&load, number, database, ledger);
            let (load, stop, begun) = (Arc::clone(&load), Arc::clone(&stop), Arc::clone(&begun));
            tasks.spawn(async move {
                let mut ticks = load.ticks(number);
                while !stop.load(Ordering::Relaxed) && begun.fetch_add(1, Ordering::Relaxed) < load.transactions {
                    if let Some(ticks) = &mut ticks {
                        ticks.tick().await;
                    }
                    producer.transact().await;
                    tokio::time::sleep(load.pause).await;
                }
            });
        }
        Ok(Running { tasks, stop })
    }

    /// Runs all transactions.
    ///
    /// # Errors
    /// As [`Load::start`].
    pub async fn run(self, database: &Database, ledger: &Ledger) -> Result<()> {
        self.start(database, ledger).await?.finish().await
    }

    /// The intended times of one producer's transactions. What is missed is not made up for: a server that was down is not
    /// to be flooded.
    fn ticks(&self, number: u64) -> Option<tokio::time::Interval> {
        let period = Duration::from_secs(1).mul_f64(1.0 / self.rate?);
        let tasks = u32::try_from(self.tasks).unwrap_or(u32::MAX);
        let start = tokio::time::Instant::now() + period * u32::try_from(number).unwrap_or(0);
        let mut ticks = tokio::time::interval_at(start, period * tasks);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        Some(ticks)
    }

    fn first_key(&self) -> u64 {
        self.keys_of.unwrap_or(self.seed) * 1_000_000
    }
}

/// A load that runs. Dropping it ends the producers wherever they are.
#[derive(Debug)]
pub struct Running {
    tasks: JoinSet<()>,
    stop: Arc<AtomicBool>,
}

impl Running {
    /// Waits until all transactions are done.
    ///
    /// # Errors
    /// When a producer panicked.
    pub async fn finish(mut self) -> Result<()> {
        while let Some(ended) = self.tasks.join_next().await {
            ended?;
        }
        Ok(())
    }

    /// Ends the load after the transactions that are open.
    ///
    /// # Errors
    /// As [`Running::finish`].
    pub async fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.finish().await
    }
}
