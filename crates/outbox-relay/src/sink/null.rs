//! Confirms everything at once and sends nothing, to measure the database side alone.

use std::{sync::Arc, time::Instant};

use async_trait::async_trait;

use super::{Feed, KeyOrder, Outcome, Outgoing, PublishError, Receipt, Sink, broker::Broker};
use crate::{
    error::RunError,
    settings::{SinkConfig, sink_type::SinkType},
};

/// The type of sink.
pub(crate) const TYPE: SinkType = SinkType { word: "null", keys: &[], example: None, read: |_| SinkConfig::new(Null) };

/// Confirms everything at once.
#[derive(Debug)]
pub struct Null;

impl Broker for Null {
    fn feed(&self, name: &str) -> Result<Feed, RunError> {
        Ok(Feed::direct(name, Arc::new(Self), 64, 1000))
    }
}

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
