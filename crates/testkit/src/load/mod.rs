//! Producers: tasks that commit business rows with their messages, roll back a share, and write the ledger.

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

/// The settings of producers. The defaults: 4 tasks, 20 keys, 200 transactions of 1 to 3 messages of 64 to 1,024 bytes,
/// a tenth rolled back, at full speed.
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
    lanes: u16,
    seed: u64,
    keys_of: Option<u64>,
}

/// The start of every payload that is long enough: it must be in no log.
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
            lanes: 1,
            seed: 1,
            keys_of: None,
        }
    }

    /// The load under which faults strike. It runs this number of transactions a second until it is stopped, each of 1
    /// to 3 messages of 64 B to 64 KiB. Sizes are logarithmic: small ones are as likely as large ones. Of its 200 keys,
    /// few are much in use. A tenth is rolled back, and a fiftieth of the handlers is cancelled midway. Every tenth key
    /// is sequenced, including the most used.
    #[must_use]
    pub fn standard(topic: &str, rate: f64) -> Self {
        let load = Self::new(topic).tasks(16).keys(200).transactions(u64::MAX).payload(64..=65_536);
        Self { rate: Some(rate), zipf: true, sequenced: Some(10), cancelled: 0.02, ..load }
    }

    /// The number of concurrent producers.
    #[must_use]
    pub fn tasks(mut self, tasks: u64) -> Self {
        self.tasks = tasks;
        self
    }

    /// The number of keys, each the key of a business row.
    #[must_use]
    pub fn keys(mut self, keys: u64) -> Self {
        self.keys = keys;
        self
    }

    /// The number of transactions until the end, including those rolled back.
    #[must_use]
    pub fn transactions(mut self, transactions: u64) -> Self {
        self.transactions = transactions;
        self
    }

    /// The number of messages in each transaction.
    #[must_use]
    pub fn messages(mut self, messages: RangeInclusive<u64>) -> Self {
        self.messages = messages;
        self
    }

    /// The number of bytes of a payload.
    #[must_use]
    pub fn payload(mut self, bytes: RangeInclusive<usize>) -> Self {
        self.payload = bytes;
        self
    }

    /// The share of transactions that are rolled back.
    #[must_use]
    pub fn rolled_back(mut self, share: f64) -> Self {
        self.rolled_back = share;
        self
    }

    /// The pause of each producer after each transaction.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// The longest time that transactions stay open after their enqueues, so that lower ids commit after higher ones.
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

    /// Spreads the keys over this number of lanes, from the lane of [`Load::lane`] on.
    #[must_use]
    pub fn lanes(mut self, lanes: u16) -> Self {
        self.lanes = lanes.max(1);
        self
    }

    /// The seed, which also selects the keys. Concurrent loads of one database need different seeds. A later load with
    /// the same seed uses the keys of the first.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Uses the keys of the load with this seed, which was started before.
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
        let load = Arc::new(self);
        let stop = Arc::new(AtomicBool::new(false));
        let begun = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for number in 0..load.tasks {
            let mut producer = Producer::new(&load, number, database, ledger);
            let load = Arc::clone(&load);
            let stop = Arc::clone(&stop);
            let begun = Arc::clone(&begun);
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

    /// The intended times of one producer's transactions. Missed times are not made up for: a returning server must not
    /// be flooded.
    fn ticks(&self, number: u64) -> Option<tokio::time::Interval> {
        let period = Duration::from_secs(1).mul_f64(1.0 / self.rate?);
        let tasks = u32::try_from(self.tasks).unwrap_or(u32::MAX);
        let start = tokio::time::Instant::now() + period * u32::try_from(number).unwrap_or(0);
        let mut ticks = tokio::time::interval_at(start, period * tasks);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        Some(ticks)
    }

    /// The lane of a key.
    fn lane_of(&self, key: u64) -> u16 {
        self.lane + u16::try_from(key % u64::from(self.lanes)).unwrap_or(0)
    }

    fn first_key(&self) -> u64 {
        self.keys_of.unwrap_or(self.seed) * 1_000_000
    }
}

/// A running load. Drop ends the producers wherever they are.
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

    /// Ends the load after the open transactions.
    ///
    /// # Errors
    /// As [`Running::finish`].
    pub async fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.finish().await
    }
}
