//! The shop's own tables.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, Result};
use outbox_core::{
    Uuid,
    sqlx::{self, AssertSqlSafe, Connection as _, MySqlConnection, MySqlPool, mysql::MySqlPoolOptions},
};

use crate::{consumers::Role, events::Order};

/// How many customers there are.
pub(crate) const CUSTOMERS: u64 = 64;

/// `ledger_entries` and `mails` have no unique key on the message: an effect that is applied twice must show.
const SHOP: [&str; 5] = [
    "CREATE TABLE customers (id BIGINT UNSIGNED PRIMARY KEY, orders BIGINT UNSIGNED NOT NULL DEFAULT 0)",
    "CREATE TABLE orders (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, customer BIGINT UNSIGNED NOT NULL, \
     number BIGINT UNSIGNED NOT NULL, amount_cents BIGINT UNSIGNED NOT NULL, status VARCHAR(16) NOT NULL)",
    "CREATE TABLE ledger_entries (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, message_id BINARY(16) NOT NULL, \
     order_id BIGINT UNSIGNED NOT NULL, amount_cents BIGINT UNSIGNED NOT NULL)",
    "CREATE TABLE customer_totals (customer BIGINT UNSIGNED PRIMARY KEY, amount_cents BIGINT UNSIGNED NOT NULL)",
    "CREATE TABLE mails (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, message_id BINARY(16) NOT NULL, \
     order_id BIGINT UNSIGNED NOT NULL, amount_cents BIGINT UNSIGNED NOT NULL)",
];

/// The rights of the relays, and of an operator.
const GRANTS: [&str; 2] =
    [include_str!("../../../deploy/grants/relay.sql"), include_str!("../../../deploy/grants/operator.sql")];

/// A database of the demo's own, and its accounts: of the shop, of the relays, and of an operator.
pub(crate) struct Database {
    admin: MySqlConnection,
    name: String,
    place: String,
    password: String,
}

impl Database {
    /// Creates it with all tables and the accounts, each with its grants.
    pub(crate) async fn create(server: &str, name: &str) -> Result<Self> {
        let (address, parameters) = server.split_once('?').unwrap_or((server, "ssl-mode=disabled"));
        let address = address.trim_end_matches('/');
        let admin = MySqlConnection::connect(&format!("{address}/?{parameters}")).await;
        let mut admin = admin.context("MySQL cannot be reached")?;
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}; USE {name}"))).execute(&mut admin).await?;
        outbox_core::migrate(&mut admin).await.context("cannot create the tables of the outbox")?;
        create(&mut admin).await.context("cannot create the shop's tables")?;
        let password = format!("{:032x}", rand::random::<u128>());
        let users = ["shop", "relay", "operator"]
            .map(|account| format!("CREATE USER '{name}_{account}'@'%' IDENTIFIED BY '{password}';"));
        let shop = format!("GRANT ALL ON {name}.* TO '{name}_shop'@'%';");
        let grants = GRANTS.map(|grants| grants.replace("'outbox_", &format!("'{name}_")));
        let accounts = [users.as_slice(), &[shop], &grants].concat().join("\n");
        sqlx::raw_sql(AssertSqlSafe(accounts)).execute(&mut admin).await.context("cannot make the accounts")?;
        let host = address.rsplit(['@', '/']).next().unwrap_or_default();
        Ok(Self { admin, name: name.to_owned(), place: format!("{host}/{name}?{parameters}"), password })
    }

    fn url(&self, account: &str) -> String {
        format!("mysql://{}_{account}:{}@{}", self.name, self.password, self.place)
    }

    /// The address for the relays.
    pub(crate) fn for_relays(&self) -> String {
        self.url("relay")
    }

    /// The address for the commands of an operator.
    pub(crate) fn for_operator(&self) -> String {
        self.url("operator")
    }

    /// Connects as the shop does.
    pub(crate) async fn open(&self, connections: u32) -> Result<MySqlPool> {
        Ok(MySqlPoolOptions::new().max_connections(connections).connect(&self.url("shop")).await?)
    }

    /// Removes it, and the accounts.
    pub(crate) async fn remove(mut self) -> Result<()> {
        let name = &self.name;
        let sql =
            format!("DROP DATABASE {name}; DROP USER '{name}_shop'@'%', '{name}_relay'@'%', '{name}_operator'@'%'");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.admin).await?;
        Ok(())
    }
}

/// Creates the tables and the customers.
async fn create(admin: &mut MySqlConnection) -> Result<()> {
    for table in SHOP {
        sqlx::query(table).execute(&mut *admin).await?;
    }
    for customer in 1..=CUSTOMERS {
        sqlx::query("INSERT INTO customers (id) VALUES (?)").bind(customer).execute(&mut *admin).await?;
    }
    Ok(())
}

/// Writes an order. It takes the lock of the customer's row first: so the orders of a customer commit in the order of
/// their numbers, and their messages keep it.
pub(crate) async fn insert_order(
    tx: &mut MySqlConnection,
    customer: u64,
    amount_cents: u64,
    placed_at: u64,
) -> Result<Order> {
    let count = "UPDATE customers SET orders = LAST_INSERT_ID(orders + 1) WHERE id = ?";
    let number = sqlx::query(count).bind(customer).execute(&mut *tx).await?.last_insert_id();
    let insert = "INSERT INTO orders (customer, number, amount_cents, status) VALUES (?, ?, ?, 'placed')";
    let insert = sqlx::query(insert).bind(customer).bind(number).bind(amount_cents);
    let id = insert.execute(tx).await?.last_insert_id();
    Ok(Order { id, customer, number, amount_cents, placed_at })
}

/// Billing's effect.
pub(crate) async fn book(tx: &mut MySqlConnection, message: Uuid, order: &Order) -> sqlx::Result<()> {
    let entry = "INSERT INTO ledger_entries (message_id, order_id, amount_cents) VALUES (?, ?, ?)";
    let entry = sqlx::query(entry).bind(message.as_bytes().as_slice()).bind(order.id).bind(order.amount_cents);
    entry.execute(&mut *tx).await?;
    let total = "INSERT INTO customer_totals (customer, amount_cents) VALUES (?, ?) \
        ON DUPLICATE KEY UPDATE amount_cents = amount_cents + VALUES(amount_cents)";
    sqlx::query(total).bind(order.customer).bind(order.amount_cents).execute(tx).await?;
    Ok(())
}

/// The mailer's effect.
pub(crate) async fn note_mail(tx: &mut MySqlConnection, message: Uuid, order: &Order) -> sqlx::Result<()> {
    let mail = "INSERT INTO mails (message_id, order_id, amount_cents) VALUES (?, ?, ?)";
    let mail = sqlx::query(mail).bind(message.as_bytes().as_slice()).bind(order.id).bind(order.amount_cents);
    mail.execute(tx).await?;
    Ok(())
}

/// All orders.
pub(crate) async fn orders(pool: &MySqlPool) -> Result<HashSet<u64>> {
    Ok(sqlx::query_scalar("SELECT id FROM orders").fetch_all(pool).await?.into_iter().collect())
}

/// How many effects each message had.
pub(crate) async fn effects(pool: &MySqlPool, role: Role) -> Result<HashMap<Uuid, u64>> {
    let sql = match role {
        Role::Billing => "SELECT message_id, COUNT(*) FROM ledger_entries GROUP BY message_id",
        Role::Mailer => "SELECT message_id, COUNT(*) FROM mails GROUP BY message_id",
    };
    counts(sqlx::query_as(sql).fetch_all(pool).await?)
}

/// How often each message is in a consumer's inbox.
pub(crate) async fn processed(pool: &MySqlPool, consumer: &str) -> Result<HashMap<Uuid, u64>> {
    let sql = "SELECT message_id, COUNT(*) FROM inbox_processed WHERE consumer = ? GROUP BY message_id";
    counts(sqlx::query_as(sql).bind(consumer).fetch_all(pool).await?)
}

fn counts(rows: Vec<(Vec<u8>, i64)>) -> Result<HashMap<Uuid, u64>> {
    rows.into_iter().map(|(id, count)| Ok((Uuid::from_slice(&id)?, count.unsigned_abs()))).collect()
}
