//! Connects to the database for commands.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use outbox_core::{check_schema_to_read, sqlx::MySqlConnection};

use crate::{
    config::Config,
    state::{database, session::describe},
};

/// The time that connecting may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Connects, and checks that the tables serve a program that reads them.
pub(super) async fn connect_to_read(config: &Config) -> anyhow::Result<MySqlConnection> {
    let mut connection = connect(config).await?;
    check_schema_to_read(&mut connection).await?;
    Ok(connection)
}

/// Connects as the relay does.
pub(super) async fn connect(config: &Config) -> anyhow::Result<MySqlConnection> {
    let login = database::Login::Configured(config.database.clone());
    let connected = tokio::time::timeout(DEADLINE, database::connect(&login)).await;
    let connected = connected.context("the database did not answer in time")?;
    connected.map_err(|error| anyhow!("the database cannot be reached: {}", describe(&error)))
}
