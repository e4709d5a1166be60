//! `relay why`.

use anyhow::Context as _;
use clap::Args;
use serde_json::Value;

use super::{
    database,
    output::{Format, pick},
};
use crate::{
    config::Config,
    operate::why::{Reference, Why, why},
};

const EXAMPLES: &str = "Examples:
  relay why 0190a8e4-0000-7000-8000-000000000000   # as consumers know it
  relay why 123 --format json                      # as the tables do";

/// Which message.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct WhyMessage {
    /// Its UUID, or its number in the tables
    message: Reference,
    #[command(flatten)]
    format: Format,
}

impl WhyMessage {
    /// Prints why the message is not sent, or where it went.
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<bool> {
        let mut connection = database::connect_to_read(config).await?;
        let why = why(&mut connection, self.message).await.context("the message cannot be looked up")?;
        if !self.format.json(&why)? {
            self.show(&why)?;
        }
        Ok(true)
    }

    /// Prints it for people: without what is not there.
    fn show(&self, why: &Why) -> anyhow::Result<()> {
        let Value::Object(mut pairs) = serde_json::to_value(why)? else { return Ok(()) };
        let receipts = pairs.remove("receipts").unwrap_or_default();
        let columns = ["sent_at", "owner", "place"];
        let rows: Vec<_> = receipts.as_array().into_iter().flatten().map(|row| pick(row, columns)).collect();
        pairs.retain(|_, value| !value.is_null());
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        if rows.is_empty() {
            return Ok(self.format.object(&pairs)?);
        }
        Ok(self.format.object_with_rows(&pairs, "receipts", columns, &rows)?)
    }
}
