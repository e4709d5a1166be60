//! The costs of sequenced keys: short transactions that enqueue *before* they lock the business row, plain and
//! sequenced.

use std::time::{Duration, Instant};

use anyhow::Result;
use outbox_core::{
    Message, Outbox,
    sqlx::{self, Connection as _},
};
use serde::Serialize;
use testkit::{database::Database, servers::Flavor};

use crate::Common;

/// The results for plain and sequenced messages.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
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
    let (plain_per_second, plain_inversions) = load.run(false).await?;
    let (sequenced_per_second, sequenced_inversions) = load.run(true).await?;
    Ok(Report {
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
        let inversions = "SELECT COUNT(*) FROM (SELECT m.id, LAG(m.id) OVER (PARTITION BY c.k ORDER BY c.place) AS before_it \
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
