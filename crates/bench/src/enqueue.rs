//! The costs of an enqueue beside bare INSERTs, and those of sequenced keys: short transactions that enqueue *before*
//! they lock the business row, plain and sequenced.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use outbox_core::{
    Message, Outbox,
    sqlx::{self, Connection as _, MySqlConnection, QueryBuilder},
};
use serde::Serialize;
use testkit::{database::Database, servers::Flavor};

use crate::{
    Common,
    latency::{at, micros},
};

/// Single enqueues, and batches of [`BATCH`] messages, each in turn with its bare INSERTs.
const SINGLE: u64 = 3000;
const BATCHES: u64 = 7;
const BATCH: u64 = 10_000;
/// The tables of the bare INSERTs: one for messages, and for batches a second one for pending rows.
const TABLES: &str = "CREATE TABLE bare_messages (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, \
                      message_id BINARY(16), \
    topic VARCHAR(255), message_key VARBINARY(255), payload LONGBLOB); \
    CREATE TABLE bare_pending (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, key_hash BIGINT UNSIGNED, \
    bytes INT UNSIGNED)";

/// The results for single messages, batches, and sequenced messages.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    enqueue_p50_ms: f64,
    enqueue_ratio: f64,
    batch_p50_ms: f64,
    batch_ratio: f64,
    producers: u64,
    keys: u64,
    transactions: u64,
    plain_per_second: f64,
    plain_inversions: i64,
    sequenced_per_second: f64,
    sequenced_inversions: i64,
    ratio: f64,
}

impl Report {
    /// Sequenced keys are in order. Plain ones need not be, because these producers lock too late.
    pub(crate) fn is_good(&self) -> bool {
        self.sequenced_inversions == 0
    }
}

pub(crate) async fn measure(common: &Common, producers: u64, transactions: u64) -> Result<Report> {
    let load = Load { producers, transactions: transactions / producers, keys: common.keys, bytes: common.bytes };
    let (enqueue_p50_ms, enqueue_ratio) = beside_bare_inserts(common, SINGLE, 1).await?;
    let (batch_p50_ms, batch_ratio) = beside_bare_inserts(common, BATCHES, BATCH).await?;
    let (plain_per_second, plain_inversions) = load.run(false).await?;
    let (sequenced_per_second, sequenced_inversions) = load.run(true).await?;
    Ok(Report {
        enqueue_p50_ms,
        enqueue_ratio,
        batch_p50_ms,
        batch_ratio,
        producers,
        keys: common.keys,
        transactions,
        plain_per_second,
        plain_inversions,
        sequenced_per_second,
        sequenced_inversions,
        ratio: plain_per_second / sequenced_per_second,
    })
}

/// The median of enqueues of this many messages on one connection, and its ratio to that of bare INSERTs, in turn. The
/// transactions' beginnings and commits are not part of it.
async fn beside_bare_inserts(common: &Common, rounds: u64, messages: u64) -> Result<(f64, f64)> {
    let database = Database::create(Flavor::MySql).await?;
    database.execute(TABLES).await?;
    let mut connection = database.connect().await?;
    let mut enqueues = Histogram::<u64>::new(3)?;
    let mut inserts = Histogram::<u64>::new(3)?;
    for round in 0..rounds {
        let message = |number: u64| {
            Message::new("bench", vec![b'x'; common.bytes]).key(format!("{}", (round + number) % common.keys))
        };
        let all: Vec<Message> = (0..messages).map(message).collect();
        let mut tx = connection.begin().await?;
        let start = Instant::now();
        if messages == 1 {
            Outbox::new().enqueue(&mut tx, message(0)).await?;
        } else {
            Outbox::new().enqueue_all(&mut tx, all).await?;
        }
        enqueues.record(micros(start.elapsed()))?;
        tx.commit().await?;

        let mut tx = connection.begin().await?;
        let start = Instant::now();
        insert(&mut tx, common, messages).await?;
        inserts.record(micros(start.elapsed()))?;
        tx.commit().await?;
    }
    database.remove().await?;
    Ok((at(&enqueues, 0.5), at(&enqueues, 0.5) / at(&inserts, 0.5)))
}

/// One INSERT of one row, or two of many.
async fn insert(db: &mut MySqlConnection, common: &Common, messages: u64) -> Result<()> {
    let mut rows = QueryBuilder::new("INSERT INTO bare_messages (message_id, topic, message_key, payload) ");
    rows.push_values(0..messages, |mut row, number| {
        let key = format!("{}", number % common.keys);
        row.push_bind(vec![7u8; 16]).push_bind("bench").push_bind(key.into_bytes()).push_bind(vec![b'x'; common.bytes]);
    });
    rows.build().execute(&mut *db).await?;
    if messages > 1 {
        let mut rows = QueryBuilder::new("INSERT INTO bare_pending (key_hash, bytes) ");
        rows.push_values(0..messages, |mut row, number| {
            row.push_bind(number).push_bind(common.bytes as u64);
        });
        rows.build().execute(db).await?;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct Load {
    producers: u64,
    transactions: u64,
    keys: u64,
    bytes: usize,
}

impl Load {
    /// Transactions per second, and the number of messages whose id breaks the commit order of their key.
    async fn run(self, sequenced: bool) -> Result<(f64, i64)> {
        let database = Database::create(Flavor::MySql).await?;
        let mut rows: Vec<String> = (0..self.keys).map(|key| format!("({key}, 0)")).collect();
        for rows in rows.chunks_mut(1000) {
            database.execute(&format!("INSERT INTO test_keys VALUES {}", rows.join(", "))).await?;
        }
        let commits = "CREATE TABLE commits (k BIGINT UNSIGNED, place BIGINT UNSIGNED, message_id BINARY(16), \
                       PRIMARY KEY (k, place))";
        database.execute(commits).await?;
        let start = Instant::now();
        let producers = (0..self.producers).map(|which| tokio::spawn(self.produce(database.clone(), which, sequenced)));
        for producer in producers.collect::<Vec<_>>() {
            producer.await??;
        }
        let took = start.elapsed().as_secs_f64();
        let inversions = "SELECT COUNT(*) FROM (SELECT m.id, LAG(m.id) OVER (PARTITION BY c.k \
                          ORDER BY c.place) AS before_it \
                          FROM commits c JOIN outbox_messages m USING (message_id)) t WHERE id < before_it";
        let inversions = database.number(inversions).await?;
        database.remove().await?;
        #[expect(clippy::cast_precision_loss, reason = "a count of transactions")]
        Ok(((self.producers * self.transactions) as f64 / took, inversions))
    }

    async fn produce(self, database: Database, which: u64, sequenced: bool) -> Result<()> {
        let mut connection = database.connect().await?;
        for n in 0..self.transactions {
            // Spreads over the keys without a generator: the stride shares no factor with the usual numbers of keys.
            let key = (which * 7919 + n * 104_729) % self.keys;
            let message = Message::new("bench", vec![b'x'; self.bytes]).key(key.to_string());
            let mut tx = connection.begin().await?;
            let id = Outbox::new().enqueue(&mut tx, if sequenced { message.sequenced() } else { message }).await?;
            // The work of a service between enqueue and lock: without it no transaction would overtake another.
            tokio::time::sleep(Duration::from_millis((which + n) % 3)).await;
            let lock = "UPDATE test_keys SET sequence = LAST_INSERT_ID(sequence + 1) WHERE id = ?";
            let place = sqlx::query(lock).bind(key).execute(&mut *tx).await?.last_insert_id();
            let insert = sqlx::query("INSERT INTO commits VALUES (?, ?, ?)").bind(key).bind(place);
            insert.bind(id.as_bytes().as_slice()).execute(&mut *tx).await?;
            tx.commit().await?;
        }
        Ok(())
    }
}
