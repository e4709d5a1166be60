//! A second server that follows a first one and takes its place. Both families, by GTID.

use anyhow::{Context as _, Result, ensure};
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, Row as _};

use super::{Flavor, MySql, MySqlOptions, PATIENCE, until};

/// The time at which a commit on the primary is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replication {
    /// After the replica has it and before others see it (`AFTER_SYNC`), however long that takes.
    SemiSynchronous,
    /// At once.
    Asynchronous,
}

impl Flavor {
    /// The arguments of a server that is to have a replica.
    #[must_use]
    pub fn primary(self) -> &'static [&'static str] {
        match self {
            Self::MySql => &["--enforce-gtid-consistency=ON", "--gtid-mode=ON", "--plugin-load-add=semisync_source.so"],
            Self::MariaDb => &["--gtid-strict-mode=ON"],
        }
    }

    fn replica(self) -> &'static [&'static str] {
        match self {
            Self::MySql => &[
                "--server-id=2",
                "--enforce-gtid-consistency=ON",
                "--gtid-mode=ON",
                "--plugin-load-add=semisync_replica.so",
                "--rpl-semi-sync-replica-enabled=ON",
                "--read-only=ON",
            ],
            Self::MariaDb => &[
                "--server-id=2",
                "--gtid-strict-mode=ON",
                "--log-slave-updates=ON",
                "--rpl-semi-sync-slave-enabled=ON",
                "--read-only=ON",
            ],
        }
    }
}

/// A server that follows another one.
#[derive(Debug)]
pub struct Replica {
    server: MySql,
    flavor: Flavor,
}

impl Replica {
    /// Starts a replica of this server, which needs the arguments of [`Flavor::primary`], and waits until it has all of
    /// its data.
    ///
    /// # Errors
    /// When it cannot be started, or does not follow.
    pub async fn of(primary: &MySql, flavor: Flavor, replication: Replication) -> Result<Self> {
        let options = MySqlOptions::new(flavor).buffer_pool_mib(256);
        let server = flavor.replica().iter().fold(options, |options, argument| options.arg(argument)).start().await?;
        let replica = Self { server, flavor };
        if replication == Replication::SemiSynchronous {
            execute(primary, wait_for_replicas(flavor)).await?;
        }
        execute(&replica.server, &follow(flavor, primary.port())).await?;
        let executed = match flavor {
            Flavor::MySql => "SELECT @@GLOBAL.gtid_executed AS found",
            Flavor::MariaDb => "SELECT @@GLOBAL.gtid_binlog_pos AS found",
        };
        let executed = text(primary, executed, "found").await?;
        replica.applied(&executed).await?;
        if replication == Replication::SemiSynchronous {
            until(PATIENCE, "the primary to wait for its replica", || acknowledged(primary, flavor)).await?;
        }
        Ok(replica)
    }

    /// Stops its receiver, like a link between data centres that is too slow: from now on it falls behind.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn fall_behind(&self) -> Result<()> {
        execute(&self.server, stop_receiving(self.flavor)).await
    }

    /// Applies everything it has received, and takes writes from now on.
    ///
    /// # Errors
    /// When the server refuses, or does not apply it.
    pub async fn promote(self) -> Result<MySql> {
        self.fall_behind().await?;
        let (received, column) = match self.flavor {
            Flavor::MySql => {
                let table = "performance_schema.replication_connection_status";
                (format!("SELECT received_transaction_set AS found FROM {table}"), "found")
            }
            Flavor::MariaDb => ("SHOW SLAVE STATUS".to_owned(), "Gtid_IO_Pos"),
        };
        let received = text(&self.server, &received, column).await?;
        self.applied(&received).await?;
        let promote = match self.flavor {
            Flavor::MySql => {
                "STOP REPLICA; RESET REPLICA ALL; SET GLOBAL super_read_only = OFF; SET GLOBAL read_only = OFF"
            }
            Flavor::MariaDb => "STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = OFF",
        };
        execute(&self.server, promote).await?;
        Ok(self.server)
    }

    /// Waits until it has applied these transactions.
    async fn applied(&self, gtids: &str) -> Result<()> {
        let sql = match self.flavor {
            Flavor::MySql => format!("SELECT CAST(WAIT_FOR_EXECUTED_GTID_SET('{gtids}', 60) AS CHAR) AS found"),
            Flavor::MariaDb => format!("SELECT CAST(MASTER_GTID_WAIT('{gtids}', 60) AS CHAR) AS found"),
        };
        let waited = text(&self.server, &sql, "found").await?;
        ensure!(waited == "0", "the replica has not applied {gtids}");
        Ok(())
    }
}

/// Checks that every commit of the primary waits for the replica, and that none went on without it.
///
/// # Errors
/// When it does not.
pub async fn acknowledged(primary: &MySql, flavor: Flavor) -> Result<()> {
    let name = match flavor {
        Flavor::MySql => "source",
        Flavor::MariaDb => "master",
    };
    for (status, expected) in [("clients", "1"), ("status", "ON"), ("no_tx", "0")] {
        let found = text(primary, &format!("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_{name}_{status}'"), "Value").await?;
        ensure!(found == expected, "Rpl_semi_sync_{name}_{status} is {found}");
    }
    Ok(())
}

/// Longer than any test: a fall-back to asynchronous replication would silently lose messages.
fn wait_for_replicas(flavor: Flavor) -> &'static str {
    match flavor {
        Flavor::MySql => {
            "SET GLOBAL rpl_semi_sync_source_timeout = 4294967295; \
             SET GLOBAL rpl_semi_sync_source_wait_point = 'AFTER_SYNC'; SET GLOBAL rpl_semi_sync_source_enabled = ON"
        }
        Flavor::MariaDb => {
            "SET GLOBAL rpl_semi_sync_master_timeout = 4294967295; \
             SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'; SET GLOBAL rpl_semi_sync_master_enabled = ON"
        }
    }
}

fn follow(flavor: Flavor, port: u16) -> String {
    match flavor {
        Flavor::MySql => format!(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, SOURCE_USER = 'root', \
             SOURCE_AUTO_POSITION = 1; START REPLICA"
        ),
        Flavor::MariaDb => format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'root', \
             MASTER_USE_GTID = slave_pos; START SLAVE"
        ),
    }
}

fn stop_receiving(flavor: Flavor) -> &'static str {
    match flavor {
        Flavor::MySql => "STOP REPLICA IO_THREAD",
        Flavor::MariaDb => "STOP SLAVE IO_THREAD",
    }
}

async fn execute(server: &MySql, sql: &str) -> Result<()> {
    let mut connection = MySqlConnection::connect(&server.url()).await?;
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.with_context(|| sql.to_owned())?;
    Ok(connection.close().await?)
}

/// A column of the one row that a statement returns.
async fn text(server: &MySql, sql: &str, column: &str) -> Result<String> {
    let mut connection = MySqlConnection::connect(&server.url()).await?;
    let row = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .fetch_one(&mut connection)
        .await
        .with_context(|| sql.to_owned())?;
    let found = row.try_get_unchecked(column)?;
    connection.close().await?;
    Ok(found)
}
