//! A service with two libraries that are named `outbox_core`: `Cargo.toml` gives one of them another name.

use mysql_outbox::{Event, Outbox, sqlx};
use outbox_core::OutboxError;

/// An event of this project's library, under the name that it has here.
#[derive(serde::Serialize, Event)]
#[event(crate = "mysql_outbox", topic = "orders", type = "order.placed.v1")]
pub struct OrderPlaced {
    /// The key.
    #[event(key)]
    pub order: u64,
}

/// Sends it, and has the error type of the other library.
pub async fn place(tx: &mut sqlx::MySqlTransaction<'_>, order: u64) -> Result<(), OutboxError> {
    let sent = Outbox::new().enqueue(tx, &OrderPlaced { order }).await;
    sent.map(drop).map_err(|error| OutboxError::DatabaseError(error.to_string()))
}
