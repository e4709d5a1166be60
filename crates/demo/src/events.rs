//! What the order service tells others.

use outbox_core::Event;
use serde::{Deserialize, Serialize};

/// An order, as both events carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Its primary key.
    pub(crate) id: u64,
    /// Who ordered.
    pub(crate) customer: u64,
    /// The place among the orders of this customer, from 1 on, without gaps.
    pub(crate) number: u64,
    /// What it costs.
    pub(crate) amount_cents: u64,
}

/// An order was placed: by way of Kafka to billing.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct OrderPlaced(pub(crate) Order);

impl Event for OrderPlaced {
    const TYPE: &'static str = "order.placed";
    const TOPIC: &'static str = "orders";

    /// The events of one customer keep their order.
    fn key(&self) -> Option<Vec<u8>> {
        Some(self.0.customer.to_string().into())
    }
}

/// A customer gets a receipt: by way of RabbitMQ to the mailer.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct ReceiptDue(pub(crate) Order);

impl Event for ReceiptDue {
    const TYPE: &'static str = "receipt.due";
    const TOPIC: &'static str = "mail.receipt";

    /// Mail is in a lane of its own: a mail server that is down must not hold up orders.
    fn lane(&self) -> u16 {
        1
    }

    fn key(&self) -> Option<Vec<u8>> {
        Some(self.0.customer.to_string().into())
    }
}
