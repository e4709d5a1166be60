//! `relay why`.

use anyhow::Context as _;
use async_trait::async_trait;
use clap::Args;
use outbox_core::sqlx::MySqlConnection;
use outbox_relay::operate::why::{Reference, why};
use serde_json::Value;

use super::{Answering, Operation};
use crate::cli::output::Format;

const EXAMPLES: &str = "Examples:
  relay why 0190a8e4-0000-7000-8000-000000000000   # as consumers know it
  relay why 123 --format json                      # as the tables do";

/// Which message.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WhyMessage {
    /// Its UUID, or its number in the tables
    message: Reference,
    #[command(flatten)]
    format: Format,
}

#[async_trait]
impl Operation for WhyMessage {
    async fn answer(&self, db: &mut MySqlConnection, _: &Answering<'_>) -> anyhow::Result<Value> {
        let why = why(db, self.message).await.context("the message cannot be looked up")?;
        Ok(serde_json::to_value(why)?)
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        show(self.format, answer)
    }
}

/// Prints the message, its failures and its receipts.
pub(super) fn show(format: Format, answer: &Value) -> anyhow::Result<()> {
    format.object_with_list(answer, "failures", ["failed_at", "attempt", "owner", "reason", "error"])?;
    Ok(format.list_below(answer, "receipts", ["sent_at", "owner", "place"])?)
}
