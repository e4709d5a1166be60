//! Records a mail for each receipt from RabbitMQ.
//!
//! A mail cannot be rolled back, so the handler writes a row, and a job sends it. The job may send it twice with the
//! same `Message-ID`; mail servers recognise that as one mail.

use anyhow::{Context as _, Result};
use outbox_consumer::{Delivery, Failure, Handler, rabbitmq, stop_signal};
use outbox_core::sqlx::{self, MySqlConnection, MySqlPool};
use serde::Deserialize;

/// The receipt has no unique key, so that a second mail would show.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS mails (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, \
    mail_id CHAR(36) NOT NULL, address VARCHAR(254) NOT NULL, body TEXT NOT NULL)";

#[derive(Debug, Deserialize)]
struct ReceiptDue {
    address: String,
    cents: u64,
}

struct Mailer;

impl Handler for Mailer {
    async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
        let receipt: ReceiptDue = message.json()?;
        if !receipt.address.contains('@') {
            return Err(Failure::dead("the address has no @"));
        }
        let body = format!("You paid {}.{:02}.", receipt.cents / 100, receipt.cents % 100);
        let mail = "INSERT INTO mails (mail_id, address, body) VALUES (?, ?, ?)";
        sqlx::query(mail).bind(message.id.to_string()).bind(receipt.address).bind(body).execute(tx).await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let variable = |name| std::env::var(name).with_context(|| format!("set {name}"));
    let pool = MySqlPool::connect(&variable("DATABASE_URL")?).await?;
    // With an account that may make tables. In production `relay migrate up` makes them, and this account may not.
    outbox_core::migrate(&mut *pool.acquire().await?).await?;
    sqlx::query(TABLE).execute(&pool).await?;
    let queue = std::env::var("QUEUE").unwrap_or_else(|_unset| "receipts".to_owned());
    let mailer = rabbitmq::Consumer::new(&variable("AMQP_URL")?, &queue, "mailer", pool)?;
    Ok(mailer.run(Mailer, stop_signal()).await?)
}
