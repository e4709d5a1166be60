//! Messages in the transactions of sqlx 0.8, sent and received.

use anyhow::{Result, bail};
use outbox_core::{Bind, Event, Inbox, Outbox, Statement, Uuid};
use sqlx::{Connection as _, MySqlConnection};

/// The tables of the service. An order has no unique key among the invoices, so that a second one would show.
pub const TABLES: [&str; 2] = [
    "CREATE TABLE orders (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, cents BIGINT UNSIGNED NOT NULL)",
    "CREATE TABLE invoices (order_id BIGINT UNSIGNED NOT NULL, cents BIGINT UNSIGNED NOT NULL)",
];

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
///
/// # Errors
///
/// If the database fails.
pub async fn place_order(tx: &mut MySqlConnection, cents: u64) -> Result<Uuid> {
    let order = sqlx::query("INSERT INTO orders (cents) VALUES (?)").bind(cents).execute(&mut *tx).await?;
    let prepared = Outbox::new().prepare(&OrderPlaced { order: order.last_insert_id(), cents })?;
    for statement in prepared.statements {
        run(tx, statement).await?;
    }
    Ok(prepared.id)
}

/// Bills an order once, whatever the number of deliveries of its message. Acknowledge the message to the broker after
/// `Ok`, and only then.
///
/// # Errors
///
/// If the payload is no order, or the database fails.
pub async fn receive(connection: &mut MySqlConnection, id: Uuid, payload: &[u8]) -> Result<()> {
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
