//! The events of the order service.

use outbox_core::Event;
use serde::{Deserialize, Serialize};

/// An order, as both events carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Its primary key.
    pub(crate) id: u64,
    /// The customer.
    pub(crate) customer: u64,
    /// The place among the orders of this customer, from 1 on, without gaps.
    pub(crate) number: u64,
    /// The price.
    pub(crate) amount_cents: u64,
    /// When it was placed, in microseconds since 1970.
    pub(crate) placed_at: u64,
}

/// An order was placed: by way of Kafka to billing. The events of one customer keep their order.
#[derive(Debug, Serialize, Event)]
#[serde(transparent)]
#[event(topic = "orders", type = "order.placed", key = |event| event.0.customer.to_string())]
pub(crate) struct OrderPlaced(pub(crate) Order);

/// A customer gets a receipt: by way of RabbitMQ to the mailer. Mail is in a lane of its own: a mail server that is
/// down must not hold up orders.
#[derive(Debug, Serialize, Event)]
#[serde(transparent)]
#[event(topic = "mail.receipt", type = "receipt.due", lane = 1, key = |event| event.0.customer.to_string())]
pub(crate) struct ReceiptDue(pub(crate) Order);
