//! The accounts of programs, each with a password and the rights that `deploy/grants` gives it.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, Result};
use sqlx::{AssertSqlSafe, MySqlConnection};

/// The password of all accounts, on servers that live as long as the tests.
const PASSWORD: &str = "correct-horse_8";

/// The rights of services on their own tables: those that [`Database`](crate::database::Database) makes.
const BUSINESS: &str = "\
    GRANT SELECT, INSERT, UPDATE, DELETE ON test_keys TO 'outbox_service'@'%'; \
    GRANT SELECT, INSERT, UPDATE, DELETE ON test_orders TO 'outbox_service'@'%'; \
    GRANT SELECT, INSERT, UPDATE, DELETE ON test_effects TO 'outbox_service'@'%'; \
    GRANT SELECT, INSERT, UPDATE, DELETE ON test_orders TO 'outbox_worker'@'%'; \
    GRANT SELECT, INSERT, UPDATE, DELETE ON test_effects TO 'outbox_worker'@'%'; \
    GRANT SELECT, INSERT, UPDATE, DELETE ON test_effects TO 'outbox_consumer'@'%'; ";

/// The account of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Account {
    /// A relay: `deploy/grants/relay.sql`, without the optional `PROCESS`.
    Relay,
    /// The same with `PROCESS`.
    RelayWithProcess,
    /// The same, and it may read the binary log: `deploy/grants/tail.sql`.
    RelayWithTail,
    /// A service: `deploy/grants/service.sql`, and its own tables.
    Service,
    /// A consumer with a database of its own: `deploy/grants/consumer.sql`.
    Consumer,
    /// A service that runs a worker and enqueues in its handlers: the lines of a relay and of a service, and its own
    /// tables.
    Worker,
    /// An operator: `deploy/grants/operator.sql`.
    Operator,
    /// A program that makes its own tables beside the outbox's, or is relay and service at once: all rights on this
    /// database.
    Owner,
}

impl Account {
    const ALL: [Self; 8] = [
        Self::Relay,
        Self::RelayWithProcess,
        Self::RelayWithTail,
        Self::Service,
        Self::Consumer,
        Self::Worker,
        Self::Operator,
        Self::Owner,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Relay => "outbox_relay",
            Self::RelayWithProcess => "outbox_relay_process",
            Self::RelayWithTail => "outbox_relay_tail",
            Self::Service => "outbox_service",
            Self::Consumer => "outbox_consumer",
            Self::Worker => "outbox_worker",
            Self::Operator => "outbox_operator",
            Self::Owner => "outbox_owner",
        }
    }

    fn grants(self) -> String {
        const RELAY: &str = include_str!("../../../deploy/grants/relay.sql");
        const SERVICE: &str = include_str!("../../../deploy/grants/service.sql");
        match self {
            Self::Relay => RELAY.to_owned(),
            // With `PROCESS` enabled, as the file describes.
            Self::RelayWithProcess => {
                RELAY.replace("-- GRANT", "GRANT").replace("'outbox_relay'", "'outbox_relay_process'")
            }
            Self::RelayWithTail => {
                let both =
                    [&RELAY.replace("-- GRANT", "GRANT"), include_str!("../../../deploy/grants/tail.sql")].concat();
                both.replace("'outbox_relay'", "'outbox_relay_tail'")
            }
            Self::Service => SERVICE.to_owned(),
            Self::Worker => {
                let both = [RELAY, SERVICE].concat();
                both.replace("'outbox_relay'", "'outbox_worker'").replace("'outbox_service'", "'outbox_worker'")
            }
            Self::Consumer => include_str!("../../../deploy/grants/consumer.sql").to_owned(),
            Self::Operator => include_str!("../../../deploy/grants/operator.sql").to_owned(),
            Self::Owner => String::new(),
        }
    }

    /// The same address with this account.
    pub(crate) fn of(self, url: &str) -> Result<String> {
        let (scheme, rest) = url.split_once("://").context("the address has no scheme")?;
        let (_, rest) = rest.split_once('@').context("the address has no account")?;
        Ok(format!("{scheme}://{}:{PASSWORD}@{rest}", self.name()))
    }
}

/// The statements of a file for existing tables and columns: an earlier release lacks some.
fn applicable(grants: &str, tables: &HashMap<String, HashSet<String>>) -> String {
    let text: String = grants.lines().filter(|line| !line.starts_with("--")).flat_map(|line| [line, "\n"]).collect();
    let is_there = |grant: &&str| {
        let Some((rights, on)) = grant.split_once(" ON ") else { return true };
        let lists = rights.split('(').skip(1).filter_map(|rest| rest.split(')').next());
        let mut columns = lists.flat_map(|list| list.split(','));
        match on.split(' ').next() {
            Some("*.*") | None => true,
            Some(table) => tables.get(table).is_some_and(|known| columns.all(|column| known.contains(column.trim()))),
        }
    };
    text.split_inclusive(';').filter(is_there).collect()
}

/// Makes the accounts on the server if they are missing, and gives the owner its rights on the connection's database.
pub(crate) async fn create(connection: &mut MySqlConnection, database: &str) -> Result<()> {
    let create =
        |account: Account| format!("CREATE USER IF NOT EXISTS '{}'@'%' IDENTIFIED BY '{PASSWORD}'; ", account.name());
    let owner = format!("GRANT ALL ON `{database}`.* TO '{}'@'%'", Account::Owner.name());
    let sql = [Account::ALL.map(create).concat(), owner].concat();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.context("cannot make the accounts")?;
    Ok(())
}

/// Gives the other accounts their rights on existing tables of the connection's database.
pub(crate) async fn grant(connection: &mut MySqlConnection) -> Result<()> {
    let columns = "SELECT CAST(table_name AS CHAR), CAST(column_name AS CHAR) FROM information_schema.columns \
                   WHERE table_schema = DATABASE()";
    let columns: Vec<(String, String)> = sqlx::query_as(columns).fetch_all(&mut *connection).await?;
    let mut tables: HashMap<String, HashSet<String>> = HashMap::new();
    for (table, column) in columns {
        tables.entry(table).or_default().insert(column);
    }
    let grants = Account::ALL.map(|account| applicable(&account.grants(), &tables));
    let sql = [grants.concat().as_str(), BUSINESS].concat();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.context("cannot grant the accounts their rights")?;
    Ok(())
}
