//! A shop that places orders, and a billing service that consumes its messages. `tests/service.rs` shows how to test
//! both.

use outbox_consumer::{Delivery, Failure, Handler};
use outbox_core::{EnqueueError, Event, Outbox};
use serde::{Deserialize, Serialize};
use sqlx::{MySqlConnection, MySqlTransaction};

/// An order was placed.
#[derive(Debug, Serialize, Deserialize, Event)]
#[event(topic = "orders", type = "order.placed")]
pub struct OrderPlaced {
    /// The order.
    #[event(key)]
    pub id: u64,
    /// The price.
    pub cents: u64,
}

/// Writes an order and its message.
///
/// # Errors
/// If the database refuses one of them. Then roll the transaction back.
pub async fn place(tx: &mut MySqlTransaction<'_>, cents: u64) -> Result<u64, EnqueueError> {
    let order = sqlx::query("INSERT INTO orders (cents) VALUES (?)").bind(cents).execute(&mut **tx).await?;
    let id = order.last_insert_id();
    Outbox::new().enqueue(tx, &OrderPlaced { id, cents }).await?;
    Ok(id)
}

/// Writes an invoice for each order.
#[derive(Debug)]
pub struct Billing;

impl Handler for Billing {
    async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
        let order: OrderPlaced = message.json()?;
        let invoice = sqlx::query("INSERT INTO invoices (order_id, cents) VALUES (?, ?)");
        invoice.bind(order.id).bind(order.cents).execute(tx).await?;
        Ok(())
    }
}
