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
        inbox::{dead, list, outcomes},
        why::Reference,
    },
};

/// The subcommands of `relay inbox`.
#[derive(Debug, Subcommand)]
pub(crate) enum Inbox {
    /// List the consumers, with what they have processed and given up
    List(ListConsumers),
    /// List the newest messages that consumers have given up on
    Dead(ListDead),
    /// Say which consumers have processed a message, or given it up
    Show(ShowOutcomes),
}

/// How to print them.
#[derive(Debug, Args)]
pub(crate) struct ListConsumers {
    #[command(flatten)]
    format: Format,
}

const DEAD_EXAMPLES: &str = "Examples:
  relay inbox dead
  relay inbox dead --consumer billing --reason attempts

The service puts them back: `retry_dead` of mysql-outbox-consumer. `relay dead` is for messages that relays gave up on.";

/// Which messages.
#[derive(Debug, Args)]
#[command(after_help = DEAD_EXAMPLES)]
pub(crate) struct ListDead {
    /// Only those of this consumer
    #[arg(long)]
    consumer: Option<String>,
    /// Only those with this reason, as in the README of mysql-outbox-consumer
    #[arg(long)]
    reason: Option<String>,
    /// Most messages
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
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
            Self::Dead(it) => {
                let wanted = (it.consumer.as_deref(), it.reason.as_deref());
                Ok(serde_json::to_value(dead(db, wanted, it.limit).await.context(failed)?)?)
            }
            Self::Show(it) => {
                let outcomes = outcomes(db, it.message).await.context(failed)?;
                Ok(serde_json::to_value(outcomes.context("no message has this number: give its UUID")?)?)
            }
        }
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        match self {
            Self::List(it) => it.format.list(["consumer", "processed", "last_at", "dead", "last_dead_at"], answer),
            Self::Dead(it) => {
                let columns = ["consumer", "message_id", "topic", "reason", "attempts", "died_at", "error"];
                it.format.list(columns, answer)
            }
            Self::Show(it) => it.format.list(["consumer", "outcome", "at", "reason", "error"], answer),
        }
    }
}
