//! The database of the demo: orders, what consumers did, and the ledger at the end.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context as _, Result};
use outbox_core::{
    Claim, Inbox, MIGRATOR, Uuid,
    sqlx::{self, AssertSqlSafe, MySqlPool, mysql::MySqlPoolOptions},
};

use crate::{
    Broker,
    tally::{Seen, Tally},
};

const TABLES: &str = "
    CREATE TABLE orders (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, customer BIGINT UNSIGNED NOT NULL, \
        cents BIGINT UNSIGNED NOT NULL);
    CREATE TABLE effects (consumer VARCHAR(20) NOT NULL, order_id BIGINT UNSIGNED NOT NULL, cents BIGINT UNSIGNED NOT NULL, \
        KEY (consumer, order_id))";

/// Makes a database of its own, with the outbox and the shop's tables; returns a pool and its URL.
pub(crate) async fn open(mysql: &str, run: &str) -> Result<(MySqlPool, String)> {
    let (server, options) = mysql.split_once('?').unwrap_or((mysql, "ssl-mode=disabled"));
    let server = server.trim_end_matches('/');
    let admin = MySqlPool::connect(&format!("{server}/?{options}")).await.context("MySQL cannot be reached")?;
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE outbox_demo_{run}"))).execute(&admin).await?;
    admin.close().await;
    let url = format!("{server}/outbox_demo_{run}?{options}");
    let pool = MySqlPoolOptions::new().max_connections(12).connect(&url).await?;
    MIGRATOR.run(&pool).await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    Ok((pool, url))
}

/// A message as a consumer gets it.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Received {
    pub(crate) order: u64,
    pub(crate) cents: u64,
}

/// This is what a consumer has to do: claim, work and commit in one transaction; acknowledge afterwards.
pub(crate) async fn apply(pool: &MySqlPool, consumer: &str, id: Uuid, payload: &[u8]) -> Result<bool> {
    let received: Received = serde_json::from_slice(payload)?;
    let mut tx = pool.begin().await?;
    let first = Inbox::new(consumer)?.claim(&mut tx, id).await? == Claim::First;
    if first {
        let effect = sqlx::query("INSERT INTO effects (consumer, order_id, cents) VALUES (?, ?, ?)");
        effect.bind(consumer).bind(received.order).bind(received.cents).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(first)
}

/// What was committed, and what became of it.
pub(crate) struct Ledger {
    committed: u64,
    rolled_back: u64,
    rows: Vec<Row>,
}

/// One broker.
struct Row {
    broker: &'static str,
    delivered: u64,
    lost: i64,
    phantom: i64,
    duplicates: u64,
    effects: i64,
    twice: i64,
}

/// Compares the orders with the effects, order by order.
pub(crate) async fn ledger(pool: &MySqlPool, broker: Broker, tally: &Tally) -> Result<Ledger> {
    let committed: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM orders").fetch_one(pool).await?;
    let mut rows = Vec::new();
    if broker.kafka() {
        rows.push(row(pool, "kafka", &tally.kafka).await?);
    }
    if broker.rabbitmq() {
        rows.push(row(pool, "rabbitmq", &tally.rabbitmq).await?);
    }
    Ok(Ledger { committed: committed.unsigned_abs(), rolled_back: tally.rolled_back.load(Relaxed), rows })
}

async fn row(pool: &MySqlPool, broker: &'static str, seen: &Seen) -> Result<Row> {
    let sql = "SELECT (SELECT COUNT(*) FROM orders o WHERE NOT EXISTS \
        (SELECT 1 FROM effects e WHERE e.consumer = ? AND e.order_id = o.id)), \
        (SELECT COUNT(*) FROM effects e WHERE e.consumer = ? AND NOT EXISTS (SELECT 1 FROM orders o WHERE o.id = e.order_id)), \
        (SELECT COUNT(*) FROM effects e WHERE e.consumer = ?), \
        (SELECT COUNT(*) - COUNT(DISTINCT order_id) FROM effects e WHERE e.consumer = ?)";
    let counts = sqlx::query_as(sql).bind(broker).bind(broker).bind(broker).bind(broker).fetch_one(pool).await?;
    let (lost, phantom, effects, twice) = counts;
    let (delivered, duplicates) = (seen.first.load(Relaxed), seen.duplicates.load(Relaxed));
    Ok(Row { broker, delivered, lost, phantom, duplicates, effects, twice })
}

impl Ledger {
    /// Whether something happened, and everything arrived once.
    pub(crate) fn adds_up(&self) -> bool {
        let good = |row: &Row| {
            row.lost == 0 && row.phantom == 0 && row.twice == 0 && row.effects.unsigned_abs() == self.committed
        };
        self.committed > 0 && self.rows.iter().all(good)
    }

    pub(crate) fn print(&self) {
        println!("\n  orders committed {:>8}   rolled back {:>6}\n", self.committed, self.rolled_back);
        println!(
            "  {:<10} {:>10} {:>6} {:>8} {:>22} {:>8} {:>14}",
            "broker", "delivered", "lost", "phantom", "duplicates absorbed", "effects", "applied twice"
        );
        for row in &self.rows {
            let Row { broker, delivered, lost, phantom, duplicates, effects, twice } = row;
            println!("  {broker:<10} {delivered:>10} {lost:>6} {phantom:>8} {duplicates:>22} {effects:>8} {twice:>14}");
        }
        println!("\n  {}", if self.adds_up() { "the ledger adds up" } else { "THE LEDGER DOES NOT ADD UP" });
    }
}
