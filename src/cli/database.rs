//! A connection for commands.

use std::time::Duration;

use anyhow::Context as _;
use outbox_core::{
    sqlx::{ConnectOptions as _, MySqlConnection},
    store::session,
};

use crate::{config::Config, database};

/// How long connecting may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Connects as the relay does.
pub(super) async fn connect(config: &Config) -> anyhow::Result<MySqlConnection> {
    let options = database::options(&config.database).context("the database URL cannot be used")?;
    let connect = async {
        let mut connection = options.connect().await?;
        session::prepare(&mut connection).await?;
        Ok::<_, outbox_core::sqlx::Error>(connection)
    };
    let connected = tokio::time::timeout(DEADLINE, connect).await.context("the database did not answer in time")?;
    connected.context("the database cannot be reached")
}
