//! Confirms everything at once and sends nothing, to measure the database side alone.

use std::time::Instant;

use async_trait::async_trait;

use super::{KeyOrder, Outcome, Outgoing, PublishError, Receipt, Sink};

/// Confirms everything at once.
#[derive(Debug)]
pub struct Null;

#[async_trait]
impl Sink for Null {
    fn key_order(&self, _message: &Outgoing) -> KeyOrder {
        KeyOrder::Pipelined
    }

    async fn publish(&self, batch: &[Outgoing], _deadline: Instant) -> Vec<Outcome> {
        batch.iter().map(|_| Ok(Receipt::new("null"))).collect()
    }

    async fn check(&self, _deadline: Instant) -> Result<(), PublishError> {
        Ok(())
    }

    async fn close(&self) {}
}
