//! Books an invoice for each order that comes from Kafka.

use anyhow::{Context as _, Result};
use outbox_consumer::{Delivery, Failure, Handler, kafka, stop_signal};
use outbox_core::sqlx::{self, MySqlConnection, MySqlPool};
use serde::Deserialize;

/// The order has no unique key, so that a second booking would show.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS invoices (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, \
    order_id BIGINT UNSIGNED NOT NULL, customer BIGINT UNSIGNED NOT NULL, cents BIGINT UNSIGNED NOT NULL)";

#[derive(Debug, Deserialize)]
struct OrderPlaced {
    id: u64,
    customer: u64,
    cents: u64,
}

struct Billing;

impl Handler for Billing {
    async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
        let order: OrderPlaced = message.json()?;
        let invoice = "INSERT INTO invoices (order_id, customer, cents) VALUES (?, ?, ?)";
        sqlx::query(invoice).bind(order.id).bind(order.customer).bind(order.cents).execute(tx).await?;
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
    let or = |name, default: &str| std::env::var(name).unwrap_or_else(|_unset| default.to_owned());
    let billing = kafka::Consumer::new(variable("KAFKA_BROKERS")?, &or("CONSUMER", "billing"), pool)?;
    // The partitions of a process that dies are given to others after six seconds.
    let billing = billing.topic(or("TOPIC", "orders")).property("session.timeout.ms", "6000");
    Ok(billing.run(Billing, stop_signal()).await?)
}
