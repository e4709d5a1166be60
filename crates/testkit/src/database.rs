//! A database of one test, and the contents of its tables.

use std::{
    collections::{HashMap, HashSet},
    io::ErrorKind,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, Row as _};
use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::{
    accounts::{self, Account},
    servers::{self, Flavor, MySql, PATIENCE, until},
};

/// The tables of a service besides the outbox. They hold rows to lock before a message of their key is enqueued, and
/// one order per message. A consumer's effects may have any number of rows per message, so that a second one shows.
const BUSINESS: &str = "\
    CREATE TABLE test_keys (id BIGINT UNSIGNED PRIMARY KEY, sequence BIGINT UNSIGNED NOT NULL); \
    CREATE TABLE test_orders (message_id BINARY(16) PRIMARY KEY); \
    CREATE TABLE test_effects (id BIGINT AUTO_INCREMENT PRIMARY KEY, message_id BINARY(16) NOT NULL)";

/// The place of a database's name in the statements of a template.
const NAME: &str = "`{name}`";

/// The session of set-up, assertions and judge.
const PLAIN: &str = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE; SET SESSION autocommit = 1, \
                     SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', SESSION innodb_lock_wait_timeout \
                     = 50, SESSION lock_wait_timeout = 60, SESSION wait_timeout = 28800, SESSION \
                     auto_increment_increment = 1, SESSION completion_type = 0, SESSION sql_select_limit = \
                     18446744073709551615, SESSION sql_big_selects = 1, SESSION sql_auto_is_null = 0, SESSION \
                     group_concat_max_len = 1048576, SESSION net_read_timeout = 30, SESSION net_write_timeout = 60, \
                     SESSION foreign_key_checks = 1, SESSION unique_checks = 1 /*!80000 , SESSION max_execution_time = \
                     0 */ /*M! , SESSION max_statement_time = 0, SESSION idle_transaction_timeout = 0, SESSION \
                     idle_write_transaction_timeout = 0, SESSION idle_readonly_transaction_timeout = 0, SESSION \
                     query_cache_type = 0 */";

/// Connects. A server ends a login that takes ten seconds (`connect_timeout`), as on a machine that is overloaded.
async fn open(url: &str) -> Result<MySqlConnection> {
    for _ in 0..3 {
        match MySqlConnection::connect(url).await {
            Err(sqlx::Error::Io(error)) if error.kind() == ErrorKind::ConnectionReset => {}
            outcome => return outcome.context("cannot connect to the database"),
        }
    }
    MySqlConnection::connect(url).await.context("cannot connect to the database")
}

/// Makes two tests of each function, on MySQL and on MariaDB: `on_both_databases!(a_commit_writes)` for `async fn
/// a_commit_writes(flavor: Flavor) -> anyhow::Result<()>`.
#[macro_export]
macro_rules! on_both_databases {
    ($($test:ident),+ $(,)?) => {
        mod mysql {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() -> anyhow::Result<()> {
                    super::$test($crate::servers::Flavor::MySql).await
                }
            )+
        }
        mod mariadb {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() -> anyhow::Result<()> {
                    super::$test($crate::servers::Flavor::MariaDb).await
                }
            )+
        }
    };
}

/// A database with the tables of the outbox and those of a service.
#[derive(Debug, Clone)]
pub struct Database {
    url: String,
}

impl Database {
    /// Makes one on the server that tests share.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses.
    pub async fn create(flavor: Flavor) -> Result<Self> {
        static TEMPLATES: [OnceCell<String>; 2] = [const { OnceCell::const_new() }; 2];
        let server = servers::mysql_url(flavor).await?;
        let [mysql, mariadb] = &TEMPLATES;
        let template = if flavor == Flavor::MySql { mysql } else { mariadb };
        let template = template.get_or_try_init(|| Self::template(&server)).await?;
        let database = Self::create_empty_on(&server).await?;
        database.execute(&template.replace(NAME, &format!("`{}`", database.name()?))).await?;
        database.furnish().await?;
        Ok(database)
    }

    /// Makes one on the server with this address.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses.
    pub async fn create_on(server: &str) -> Result<Self> {
        let database = Self::create_empty_on(server).await?;
        let mut connection = database.plain().await?;
        outbox_core::migrate(&mut connection).await?;
        connection.close().await?;
        database.furnish().await?;
        Ok(database)
    }

    /// Migrates a database, and returns the statements that make its tables and views elsewhere: migrations take the
    /// server three times as long.
    async fn template(server: &str) -> Result<String> {
        let database = Self::create_empty_on(server).await?;
        let mut connection = database.plain().await?;
        outbox_core::migrate(&mut connection).await?;
        let objects = "SELECT CAST(table_name AS CHAR), CAST(table_type AS CHAR) FROM information_schema.tables \
            WHERE table_schema = DATABASE() ORDER BY table_type, table_name";
        let objects: Vec<(String, String)> = sqlx::query_as(objects).fetch_all(&mut connection).await?;
        let own = database.name()?;
        let mut statements = Vec::new();
        for (object, kind) in objects {
            if kind == "VIEW" {
                let show = AssertSqlSafe(format!("SHOW CREATE VIEW {object}"));
                let view: String = sqlx::query(show).fetch_one(&mut connection).await?.try_get(1)?;
                statements.push(view.replace(&format!("`{own}`"), NAME));
                continue;
            }
            statements.push(format!("CREATE TABLE {object} LIKE {own}.{object}"));
            if database.number(&format!("SELECT COUNT(*) FROM {object}")).await? > 0 {
                statements.push(format!("INSERT INTO {object} SELECT * FROM {own}.{object}"));
            }
        }
        connection.close().await?;
        Ok(statements.join("; "))
    }

    /// Adds a service's tables and the accounts to existing tables of the outbox.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn furnish(&self) -> Result<()> {
        self.execute(BUSINESS).await?;
        self.grant().await
    }

    /// Gives the accounts their rights on the existing tables, as after an upgrade.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn grant(&self) -> Result<()> {
        let mut connection = self.plain().await?;
        accounts::grant(&mut connection).await?;
        Ok(connection.close().await?)
    }

    /// Makes one without any table on the server that tests share.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses.
    pub async fn create_empty(flavor: Flavor) -> Result<Self> {
        Self::create_empty_on(&servers::mysql_url(flavor).await?).await
    }

    /// The same on a server with this address.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn create_empty_on(server: &str) -> Result<Self> {
        let url = servers::fresh_database(server).await?;
        let database = Self { url: format!("{url}{}ssl-mode=disabled", if url.contains('?') { '&' } else { '?' }) };
        accounts::create(&mut database.plain().await?, database.name()?).await?;
        Ok(database)
    }

    /// The same database through another address: that of a proxy.
    #[must_use]
    pub fn at(url: &str) -> Self {
        Self { url: url.to_owned() }
    }

    /// The database of the same name on another server.
    ///
    /// # Errors
    /// When the address has no database.
    pub fn on(&self, server: &MySql) -> Result<Self> {
        Ok(Self { url: format!("{}{}?ssl-mode=disabled", server.url(), self.name()?) })
    }

    /// Its address for the administrator: set-up, assertions, judge. The server is on the loopback address, where TLS
    /// would only cost time.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its address for a program, which logs in with a password.
    ///
    /// # Errors
    /// When the address has no database.
    pub fn url_as(&self, account: Account) -> Result<String> {
        account.of(&self.url)
    }

    fn name(&self) -> Result<&str> {
        let address = self.url.split('?').next().unwrap_or_default();
        let (_, name) = address.rsplit_once('/').context("the address has no database")?;
        Ok(name)
    }

    /// Drops it: a measurement must not leave its load on a server that others share.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses.
    pub async fn remove(self) -> Result<()> {
        self.execute(&format!("DROP DATABASE {}", self.name()?)).await
    }

    /// Opens a connection of [`Account::Owner`].
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn connect(&self) -> Result<MySqlConnection> {
        self.connect_as(Account::Owner).await
    }

    /// Opens a connection of the administrator, with the server's settings for services.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn connect_as_admin(&self) -> Result<MySqlConnection> {
        open(&self.url).await
    }

    /// Opens a connection of a program.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn connect_as(&self, account: Account) -> Result<MySqlConnection> {
        open(&self.url_as(account)?).await
    }

    /// Opens a connection of a program that sets its session as relays do.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn session_of(&self, account: Account) -> Result<MySqlConnection> {
        let mut connection = self.connect_as(account).await?;
        outbox_core::store::session::prepare(&mut connection).await?;
        Ok(connection)
    }

    /// Opens a connection for set-up and assertions, whatever the server's defaults are.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn plain(&self) -> Result<MySqlConnection> {
        let mut connection = self.connect_as_admin().await?;
        sqlx::raw_sql(PLAIN).execute(&mut connection).await?;
        Ok(connection)
    }

    /// The one number that a query returns.
    ///
    /// # Errors
    /// When the query fails, or returns something else.
    pub async fn number(&self, sql: &str) -> Result<i64> {
        let mut connection = self.plain().await?;
        let number = sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(number)
    }

    /// Runs statements.
    ///
    /// # Errors
    /// When one fails.
    pub async fn execute(&self, sql: &str) -> Result<()> {
        let mut connection = self.plain().await?;
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    /// Waits until a query returns something other than zero.
    ///
    /// # Errors
    /// When it still returns zero at the deadline.
    pub async fn wait_for(&self, deadline: Duration, sql: &str) -> Result<()> {
        until(deadline, sql, || async {
            ensure!(self.number(sql).await? != 0, "the query returned zero");
            Ok(())
        })
        .await
    }

    /// Waits until this number of transactions wait for locks on the tables.
    ///
    /// # Errors
    /// When there are fewer at the deadline.
    pub async fn wait_for_lock_waits(&self, flavor: Flavor, least: u32) -> Result<()> {
        let waiting = match flavor {
            Flavor::MySql => {
                "SELECT COUNT(DISTINCT engine_transaction_id) FROM performance_schema.data_locks \
                 WHERE lock_status = 'WAITING' AND object_schema = DATABASE()"
            }
            // `innodb_locks` is no use here: a second query within 100 ms, from any session, gets the same old answer.
            Flavor::MariaDb => {
                "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() \
                 AND id <> CONNECTION_ID() AND command IN ('Query', 'Execute') AND time_ms > 500"
            }
        };
        self.wait_for(PATIENCE, &format!("SELECT ({waiting}) >= {least}")).await
    }

    /// Waits until nothing is pending, delayed or claimed.
    ///
    /// # Errors
    /// When something still is at the deadline.
    pub async fn wait_until_drained(&self, deadline: Duration) -> Result<()> {
        let left = "SELECT 'pending', COUNT(*) FROM outbox_pending HAVING COUNT(*) > 0 UNION ALL \
                    SELECT reason, COUNT(*) FROM outbox_delayed GROUP BY reason UNION ALL \
                    SELECT 'claims', COUNT(*) FROM outbox_claims HAVING COUNT(*) > 0";
        until(deadline, "the backlog to drain", || async {
            let mut connection = self.plain().await?;
            let left: Vec<(String, i64)> = sqlx::query_as(left).fetch_all(&mut connection).await?;
            connection.close().await?;
            ensure!(left.is_empty(), "left are {left:?}");
            Ok(())
        })
        .await
    }

    /// Reads the tables in one snapshot.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn tables(&self) -> Result<Tables> {
        let mut connection = self.plain().await?;
        let mut snapshot = connection.begin().await?;
        let tables = Tables::read(&mut snapshot).await?;
        snapshot.commit().await?;
        Ok(tables)
    }
}

/// The state of each message in the tables. Messages are named by their message id; `orphans` are rows without a
/// message.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    /// Rows of `outbox_messages`.
    pub messages: HashSet<Uuid>,
    /// Rows of `outbox_pending`.
    pub pending: HashSet<Uuid>,
    /// Rows of `outbox_delayed`.
    pub delayed: HashSet<Uuid>,
    /// Rows of `outbox_dead`, with their reason.
    pub dead: HashMap<Uuid, String>,
    /// The receipts of each message in `outbox_sent`.
    pub receipts: HashMap<Uuid, Vec<String>>,
    /// Rows that name a missing message.
    pub orphans: Vec<String>,
    /// Rows of the service's own table, one per message.
    pub business: HashSet<Uuid>,
    /// The number of times a consumer has applied each message.
    pub effects: HashMap<Uuid, u64>,
    /// The number of rows in `inbox_processed` of each message.
    pub processed: HashMap<Uuid, u64>,
}

impl Tables {
    async fn read(conn: &mut MySqlConnection) -> Result<Self> {
        let rows = sqlx::query("SELECT id, message_id FROM outbox_messages").fetch_all(&mut *conn).await?;
        let names = rows.iter().map(|row| Ok((row.try_get(0)?, uuid(row.try_get(1)?)?)));
        let names: HashMap<u64, Uuid> = names.collect::<Result<_>>()?;
        let mut tables = Self { messages: names.values().copied().collect(), ..Self::default() };
        let mut name = |table: &str, id: u64| {
            let found = names.get(&id).copied();
            if found.is_none() {
                tables.orphans.push(format!("{table}: {id}"));
            }
            found
        };
        let pending: Vec<u64> = sqlx::query_scalar("SELECT id FROM outbox_pending").fetch_all(&mut *conn).await?;
        tables.pending = pending.into_iter().filter_map(|id| name("outbox_pending", id)).collect();
        let delayed: Vec<u64> = sqlx::query_scalar("SELECT id FROM outbox_delayed").fetch_all(&mut *conn).await?;
        tables.delayed = delayed.into_iter().filter_map(|id| name("outbox_delayed", id)).collect();
        let dead: Vec<(u64, String)> =
            sqlx::query_as("SELECT id, reason FROM outbox_dead").fetch_all(&mut *conn).await?;
        tables.dead = dead.into_iter().filter_map(|(id, reason)| Some((name("outbox_dead", id)?, reason))).collect();
        for (id, receipt) in receipts(conn).await? {
            if let Some(message) = name("outbox_sent", id) {
                tables.receipts.entry(message).or_default().push(receipt);
            }
        }
        tables.business = counts(conn, "test_orders").await?.into_keys().collect();
        tables.effects = counts(conn, "test_effects").await?;
        tables.processed = counts(conn, "inbox_processed").await?;
        Ok(tables)
    }
}

/// The messages of all settled claims, each with its receipt. The view `outbox_sent_messages` would take quadratic
/// time.
async fn receipts(conn: &mut MySqlConnection) -> Result<Vec<(u64, String)>> {
    let sql = "SELECT message_ids, receipts FROM outbox_sent";
    let rows: Vec<(String, String)> = sqlx::query_as(sql).fetch_all(conn).await?;
    let mut all = Vec::new();
    for (ids, receipts) in rows {
        let ids: Vec<u64> = serde_json::from_str(&ids)?;
        let receipts: Vec<String> = serde_json::from_str(&receipts)?;
        ensure!(ids.len() == receipts.len(), "{} messages have {} receipts", ids.len(), receipts.len());
        all.extend(ids.into_iter().zip(receipts));
    }
    Ok(all)
}

/// The number of rows that each message has in a table.
async fn counts(conn: &mut MySqlConnection, table: &str) -> Result<HashMap<Uuid, u64>> {
    let sql = format!("SELECT message_id, COUNT(*) FROM {table} GROUP BY message_id");
    let rows: Vec<(Vec<u8>, i64)> = sqlx::query_as(AssertSqlSafe(sql)).fetch_all(conn).await?;
    rows.into_iter().map(|(id, count)| Ok((uuid(&id)?, count.unsigned_abs()))).collect()
}

fn uuid(bytes: &[u8]) -> Result<Uuid> {
    Uuid::from_slice(bytes).context("a message id that is no UUID")
}
