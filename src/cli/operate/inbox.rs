//! `relay inbox`.

use anyhow::Context as _;
use async_trait::async_trait;
use clap::{Args, Subcommand};
use outbox_core::sqlx::MySqlConnection;
use serde_json::Value;

use super::{Answering, Operation};
use crate::{
    cli::output::Format,
    operate::{
        inbox::{list, outcomes},
        why::Reference,
    },
};

/// The subcommands of `relay inbox`.
#[derive(Debug, Subcommand)]
pub(crate) enum Inbox {
    /// List the consumers, with what they have processed and given up
    List(ListConsumers),
    /// Say which consumers have processed a message, or given it up
    Show(ShowOutcomes),
}

/// How to print them.
#[derive(Debug, Args)]
pub(crate) struct ListConsumers {
    #[command(flatten)]
    format: Format,
}

const EXAMPLES: &str = "Examples:
  relay inbox show 0190a8e4-0000-7000-8000-000000000000
  relay inbox show 1523";

/// Which message.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ShowOutcomes {
    /// Its UUID, or its number in the tables
    message: Reference,
    #[command(flatten)]
    format: Format,
}

#[async_trait]
impl Operation for Inbox {
    async fn answer(&self, db: &mut MySqlConnection, _: &Answering<'_>) -> anyhow::Result<Value> {
        let failed = "the inbox cannot be read";
        match self {
            Self::List(_) => Ok(serde_json::to_value(list(db).await.context(failed)?)?),
            Self::Show(it) => {
                let outcomes = outcomes(db, it.message).await.context(failed)?;
                Ok(serde_json::to_value(outcomes.context("no message has this number: give its UUID")?)?)
            }
        }
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        match self {
            Self::List(it) => it.format.list(["consumer", "processed", "last_at", "dead", "last_dead_at"], answer),
            Self::Show(it) => it.format.list(["consumer", "outcome", "at", "reason", "error"], answer),
        }
    }
}
