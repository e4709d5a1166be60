//! Ships orders from Kafka, published by a relay or by Debezium.

use anyhow::{Context as _, Result};
use sqlx::MySqlPool;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let variable = |name| std::env::var(name).with_context(|| format!("set {name}"));
    let pool = MySqlPool::connect(&variable("DATABASE_URL")?).await?;
    from_debezium::create_tables(&pool).await?;
    let or = |name, default: &str| std::env::var(name).unwrap_or_else(|_unset| default.to_owned());
    let group = or("GROUP_ID", "shipping");
    let topic = or("TOPIC", "outbox.event.Order");
    let consumer = from_debezium::consumer(&variable("KAFKA_BROKERS")?, &group, &topic)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    from_debezium::run(&consumer, &pool, stop).await
}
