//! Messages in the transactions of `mysql_async`: `DATABASE_URL=mysql://… cargo run -p example-mysql-async`.
//!
//! Places two orders, of which one is rolled back. Receives the message of the other twice, and bills it once.
#![expect(clippy::print_stdout, reason = "it talks to a person")]

use anyhow::{Context as _, Result, bail, ensure};
use mysql_async::{Conn, Params, Transaction, TxOpts, Value, prelude::Queryable as _};
use outbox_core::{Bind, Event, Inbox, Outbox, Statement, Uuid};

const ORDERS: &str =
    "CREATE TABLE orders (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, cents BIGINT UNSIGNED NOT NULL)";
/// The order has no unique key, so that a second invoice would show.
const INVOICES: &str = "CREATE TABLE invoices (order_id BIGINT UNSIGNED NOT NULL, cents BIGINT UNSIGNED NOT NULL)";
/// The server's number for "duplicate entry for a unique key".
const DUPLICATE_ENTRY: u16 = 1062;

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order: u64,
    cents: u64,
}

/// Runs a statement of the outbox or of the inbox.
async fn run(tx: &mut Transaction<'_>, statement: Statement) -> Result<()> {
    let values = statement.binds.into_iter().map(value).collect::<Result<_>>()?;
    Ok(tx.exec_drop(statement.sql, Params::Positional(values)).await?)
}

fn value(bind: Bind) -> Result<Value> {
    Ok(match bind {
        Bind::Null => Value::NULL,
        Bind::Bytes(bytes) => Value::Bytes(bytes),
        Bind::Text(text) => Value::Bytes(text.into_bytes()),
        Bind::Unsigned(number) => Value::UInt(number),
        Bind::Signed(number) => Value::Int(number),
        other => bail!("no value for {other:?}"),
    })
}

/// Writes an order and its message in a transaction that the caller ends. Returns the message id.
async fn place_order(tx: &mut Transaction<'_>, cents: u64) -> Result<Uuid> {
    tx.exec_drop("INSERT INTO orders (cents) VALUES (?)", (cents,)).await?;
    let order = tx.last_insert_id().context("an order has a number")?;
    let prepared = Outbox::new().prepare(&OrderPlaced { order, cents })?;
    for statement in prepared.statements {
        run(tx, statement).await?;
    }
    Ok(prepared.id)
}

/// Bills an order once, whatever the number of deliveries of its message. Acknowledge the message to the broker after
/// `Ok`, and only then.
async fn receive(connection: &mut Conn, id: Uuid, payload: &[u8]) -> Result<()> {
    let placed: OrderPlaced = serde_json::from_slice(payload)?;
    let mut tx = connection.start_transaction(TxOpts::default()).await?;
    if !is_new(run(&mut tx, Inbox::new("billing")?.prepare(id)).await)? {
        return Ok(tx.rollback().await?);
    }
    tx.exec_drop("INSERT INTO invoices (order_id, cents) VALUES (?, ?)", (placed.order, placed.cents)).await?;
    Ok(tx.commit().await?)
}

/// Whether the inbox took the message: it refuses one that was processed before.
fn is_new(claimed: Result<()>) -> Result<bool> {
    match claimed {
        Ok(()) => Ok(true),
        Err(error) => match error.downcast_ref() {
            Some(mysql_async::Error::Server(server)) if server.code == DUPLICATE_ENTRY => Ok(false),
            _ => Err(error),
        },
    }
}

async fn count(connection: &mut Conn, table: &str) -> Result<u64> {
    connection.query_first(format!("SELECT COUNT(*) FROM {table}")).await?.context("a count has a row")
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL to a database with the outbox tables")?;
    let mut connection = Conn::from_url(url).await?;
    connection.query_drop(ORDERS).await?;
    connection.query_drop(INVOICES).await?;

    let mut tx = connection.start_transaction(TxOpts::default()).await?;
    let id = place_order(&mut tx, 995).await?;
    tx.commit().await?;

    let mut tx = connection.start_transaction(TxOpts::default()).await?;
    place_order(&mut tx, 4_200).await?;
    tx.rollback().await?; // takes the message with it

    // In place of a relay and a broker, which may deliver a message twice.
    let sql = "SELECT payload FROM outbox_messages WHERE message_id = ?";
    let payload: Vec<u8> = connection.exec_first(sql, (id.as_bytes().as_slice(),)).await?.context("no message")?;
    for _ in 0..2 {
        receive(&mut connection, id, &payload).await?;
    }

    for table in ["orders", "outbox_pending", "invoices"] {
        let rows = count(&mut connection, table).await?;
        ensure!(rows == 1, "{table} has {rows} rows");
    }
    println!("1 order, 1 message, 1 invoice");
    Ok(connection.disconnect().await?)
}
