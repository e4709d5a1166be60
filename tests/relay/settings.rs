//! Servers with one rare setting. `./dev test --servers odd` has servers with many of them at once.

use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::{
    consume::{Broker, Topic},
    database::Database,
    judge::Expectations,
    load::Load,
    servers::{Flavor, MySqlOptions},
};

use crate::stage::Stage;

/// Runs three relays, eight producers, and the judge's consumers.
async fn is_served(flavor: Flavor, broker: Broker, argument: &str) -> Result<()> {
    let server = MySqlOptions::new(flavor).arg(argument).start().await?;
    let mut stage = Stage::with(Database::create_on(&server.url()).await?, Topic::create(broker).await?)?.patient();
    let relays = [stage.relay()?, stage.relay()?, stage.relay()?];
    let load = Load::new(stage.topic.name()).tasks(8).keys(20).transactions(400).messages(1..=5);
    load.rolled_back(0.1).held(Duration::from_millis(5)).run(&stage.database, &stage.ledger).await?;
    stage.drain_and_judge(&Expectations::new().at_least(400)).await?;
    for relay in &relays {
        let failed = relay.metrics().await?.sum("outbox_relay_db_errors_total");
        ensure!(failed < 0.5, "{failed} calls of the database failed\n{}", relay.log()?);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn services_may_be_serializable() -> Result<()> {
    is_served(Flavor::MySql, Broker::Kafka, "--transaction-isolation=SERIALIZABLE").await?;
    is_served(Flavor::MariaDb, Broker::RabbitMq, "--transaction-isolation=SERIALIZABLE").await
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_connections_are_enough_for_three_relays_and_a_service() -> Result<()> {
    is_served(Flavor::MySql, Broker::RabbitMq, "--max-connections=60").await?;
    is_served(Flavor::MariaDb, Broker::Kafka, "--max-connections=60").await
}
