//! Messages in the transactions of sqlx 0.8: `DATABASE_URL=mysql://… cargo run -p example-sqlx-0-8`.
//!
//! Places two orders, of which one is rolled back. Receives the message of the other twice, and bills it once.
#![expect(clippy::print_stdout, reason = "it talks to a person")]

use anyhow::{Context as _, Result, bail, ensure};
use outbox_core::{Bind, Event, Inbox, Outbox, Statement, Uuid};
use sqlx::{Connection as _, MySqlConnection};

const ORDERS: &str =
    "CREATE TABLE orders (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, cents BIGINT UNSIGNED NOT NULL)";
/// The order has no unique key, so that a second invoice would show.
const INVOICES: &str = "CREATE TABLE invoices (order_id BIGINT UNSIGNED NOT NULL, cents BIGINT UNSIGNED NOT NULL)";

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order: u64,
    cents: u64,
}

/// Runs a statement of the outbox or of the inbox.
async fn run(tx: &mut MySqlConnection, statement: Statement) -> Result<()> {
    let mut query = sqlx::query(statement.sql);
    for bind in statement.binds {
        query = match bind {
            Bind::Null => query.bind(None::<Vec<u8>>),
            Bind::Bytes(bytes) => query.bind(bytes),
            Bind::Text(text) => query.bind(text),
            Bind::Unsigned(number) => query.bind(number),
            Bind::Signed(number) => query.bind(number),
            other => bail!("no value for {other:?}"),
        };
    }
    query.execute(tx).await?;
    Ok(())
}

/// Writes an order and its message in a transaction that the caller ends. Returns the message id.
async fn place_order(tx: &mut MySqlConnection, cents: u64) -> Result<Uuid> {
    let order = sqlx::query("INSERT INTO orders (cents) VALUES (?)").bind(cents).execute(&mut *tx).await?;
    let prepared = Outbox::new().prepare(&OrderPlaced { order: order.last_insert_id(), cents })?;
    for statement in prepared.statements {
        run(tx, statement).await?;
    }
    Ok(prepared.id)
}

/// Bills an order once, whatever the number of deliveries of its message. Acknowledge the message to the broker after
/// `Ok`, and only then.
async fn receive(connection: &mut MySqlConnection, id: Uuid, payload: &[u8]) -> Result<()> {
    let placed: OrderPlaced = serde_json::from_slice(payload)?;
    let mut tx = connection.begin().await?;
    if !is_new(run(&mut tx, Inbox::new("billing")?.prepare(id)).await)? {
        return Ok(tx.rollback().await?);
    }
    let invoice = sqlx::query("INSERT INTO invoices (order_id, cents) VALUES (?, ?)");
    invoice.bind(placed.order).bind(placed.cents).execute(&mut *tx).await?;
    Ok(tx.commit().await?)
}

/// Whether the inbox took the message: it refuses one that was processed before, with error 1062.
fn is_new(claimed: Result<()>) -> Result<bool> {
    match claimed {
        Ok(()) => Ok(true),
        Err(error) => match error.downcast_ref() {
            Some(sqlx::Error::Database(refused)) if refused.is_unique_violation() => Ok(false),
            _ => Err(error),
        },
    }
}

async fn count(connection: &mut MySqlConnection, table: &str) -> Result<i64> {
    Ok(sqlx::query_scalar(&format!("SELECT COUNT(*) FROM {table}")).fetch_one(connection).await?)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL to a database with the outbox tables")?;
    let mut connection = MySqlConnection::connect(&url).await?;
    sqlx::query(ORDERS).execute(&mut connection).await?;
    sqlx::query(INVOICES).execute(&mut connection).await?;

    let mut tx = connection.begin().await?;
    let id = place_order(&mut tx, 995).await?;
    tx.commit().await?;

    let mut tx = connection.begin().await?;
    place_order(&mut tx, 4_200).await?;
    tx.rollback().await?; // takes the message with it

    // In place of a relay and a broker, which may deliver a message twice.
    let sql = "SELECT payload FROM outbox_messages WHERE message_id = ?";
    let payload: Vec<u8> = sqlx::query_scalar(sql).bind(id.as_bytes().as_slice()).fetch_one(&mut connection).await?;
    for _ in 0..2 {
        receive(&mut connection, id, &payload).await?;
    }

    for table in ["orders", "outbox_pending", "invoices"] {
        let rows = count(&mut connection, table).await?;
        ensure!(rows == 1, "{table} has {rows} rows");
    }
    println!("1 order, 1 message, 1 invoice");
    Ok(connection.close().await?)
}
