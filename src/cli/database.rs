//! Connects to the database for commands.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use outbox_core::{
    check_schema_to_read,
    sqlx::{self, MySqlConnection},
    store::operate::locked,
};
use outbox_relay::{database, state::session::describe};
use tokio::time::timeout;

use crate::config::Config;

/// The time that connecting may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// The time that the work of a command may take.
const WORK: Duration = Duration::from_secs(60);

/// Connects, and checks that the tables serve a program that reads them.
pub(super) async fn connect_to_read(config: &Config) -> anyhow::Result<MySqlConnection> {
    let mut connection = connect(config).await?;
    within(&mut connection, async |db| Ok(check_schema_to_read(db).await?)).await?;
    Ok(connection)
}

/// Does the work of a command that connects, within its deadline. Names the table, if a lock of a table is in the way.
pub(super) async fn within<T>(
    db: &mut MySqlConnection,
    work: impl AsyncFnOnce(&mut MySqlConnection) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let Ok(done) = timeout(WORK, work(db)).await else {
        bail!("the database has not answered within {} s: look at its load, its locks and the network", WORK.as_secs());
    };
    let is_lock_wait = |error: &anyhow::Error| {
        error.chain().filter_map(|it| it.downcast_ref::<sqlx::Error>()).any(locked::is_lock_wait)
    };
    if done.as_ref().is_err_and(is_lock_wait)
        && let Ok(Ok(Some(lock))) = timeout(DEADLINE, locked::find(db)).await
    {
        bail!("{lock}");
    }
    done
}

/// Connects as the relay does.
pub(super) async fn connect(config: &Config) -> anyhow::Result<MySqlConnection> {
    let login = database::Login::Configured(config.database.clone());
    let connected = timeout(DEADLINE, database::connect(&login)).await;
    let connected = connected.context("the database did not answer in time")?;
    connected.map_err(|error| anyhow!("the database cannot be reached: {}", describe(&error)))
}
