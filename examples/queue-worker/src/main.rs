//! Books transfers from a queue in MySQL. `queue-worker` works, `queue-worker 100` enqueues a hundred transfers.

use std::time::Duration;

use anyhow::{Context as _, Result};
use outbox_core::{
    Message, Outbox,
    sqlx::{self, MySqlConnection, MySqlPool},
};
use outbox_relay::worker::{Delivery, Failure, Handler, Worker, stop_signal};
use serde::{Deserialize, Serialize};

/// The number has no unique key, so that a second booking would show.
const TABLES: &str = "CREATE TABLE IF NOT EXISTS accounts (id BIGINT UNSIGNED PRIMARY KEY, \
                      cents BIGINT UNSIGNED NOT NULL); \
    CREATE TABLE IF NOT EXISTS bookings (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, \
    number BIGINT UNSIGNED NOT NULL, account BIGINT UNSIGNED NOT NULL)";
/// The lane is the workers' own.
const LANE: u16 = 7;

#[derive(Debug, Serialize, Deserialize)]
struct Transfer {
    number: u64,
    account: u64,
    cents: u64,
}

struct Accounts;

impl Handler for Accounts {
    async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
        let transfer: Transfer = message.json()?;
        let credit = "INSERT INTO accounts (id, cents) VALUES (?, ?) ON DUPLICATE KEY UPDATE cents = cents + ?";
        let credit = sqlx::query(credit).bind(transfer.account).bind(transfer.cents).bind(transfer.cents);
        credit.execute(&mut *tx).await?;
        let booking = sqlx::query("INSERT INTO bookings (number, account) VALUES (?, ?)");
        booking.bind(transfer.number).bind(transfer.account).execute(tx).await?;
        Ok(())
    }
}

/// Enqueues transfers to seven accounts, numbered from 1.
async fn enqueue(pool: &MySqlPool, transfers: u64) -> Result<()> {
    let mut tx = pool.begin().await?;
    let message = |number: u64| -> Result<Message> {
        let transfer = Transfer { number, account: number % 7, cents: 100 * number };
        Ok(Message::json("transfers", &transfer)?.key(transfer.account.to_string()).lane(LANE))
    };
    let messages = (1..=transfers).map(message).collect::<Result<Vec<_>>>()?;
    Outbox::new().enqueue_all(&mut tx, messages).await?;
    Ok(tx.commit().await?)
}

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let pool = MySqlPool::connect(&std::env::var("DATABASE_URL").context("set DATABASE_URL")?).await?;
    outbox_core::migrate(&mut *pool.acquire().await?).await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    if let Some(transfers) = std::env::args().nth(1) {
        return enqueue(&pool, transfers.parse().context("the argument is no number")?).await;
    }
    let mut worker = Worker::new(pool.connect_options(), LANE).deadline(Duration::from_secs(4)).configure(|config| {
        // After eight seconds the work of a dead process goes to others.
        config.relay.lease = Duration::from_secs(8);
        config.relay.settle_deadline = Duration::from_secs(2);
        config.relay.safety = Duration::from_secs(1);
    });
    if let Ok(address) = std::env::var("LISTEN") {
        worker = worker.listen(address.parse().context("LISTEN is no address")?);
    }
    Ok(worker.run(Accounts, stop_signal()).await?)
}
