//! `relay inbox`.

use anyhow::Context as _;
use async_trait::async_trait;
use clap::{Args, Subcommand};
use outbox_core::{Uuid, sqlx::MySqlConnection};
use outbox_relay::operate::{
    inbox::{dead, list, outcomes, retries, retry},
    why::Reference,
};
use serde_json::{Value, json};

use super::{
    Answering, Operation, Role,
    by::{By, refused},
};
use crate::cli::output::{self, Format};

/// The subcommands of `relay inbox`.
#[derive(Debug, Subcommand)]
pub(crate) enum InboxCommand {
    /// List the consumers, with what they have processed and given up
    List(ListConsumers),
    /// List the newest messages that consumers have given up on
    Dead(ListDead),
    /// Say which consumers have processed a message, or given it up
    Show(ShowOutcomes),
    /// Order a consumer to retry messages that it has given up on
    Retry(RetryDead),
    /// List the orders to retry such messages, with their progress
    Retries(ListRetries),
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

To retry them: relay inbox retry. `relay dead` is for messages that relays gave up on.";

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

const RETRY_EXAMPLES: &str = "A running consumer of this name and release begins within some seconds, and gives each message to its handler once:
  relay inbox retry --consumer billing --all --because 'the tax service is back'
  relay inbox retry --consumer billing 0190a8e4-0000-7000-8000-000000000000 --because 'the order is repaired'
  relay inbox retries

A message that was too large to be kept is left out. An order cannot be taken back; it waits while the consumer is stopped.";

/// Which messages.
#[derive(Debug, Args)]
#[command(after_help = RETRY_EXAMPLES, mut_arg("because", |because| because.required(true)))]
pub(crate) struct RetryDead {
    /// The consumer
    #[arg(long)]
    consumer: String,
    /// The message, by its UUID
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    message: Option<Uuid>,
    /// All messages of the consumer that are dead now
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    by: By,
    #[command(flatten)]
    format: Format,
}

/// How many.
#[derive(Debug, Args)]
pub(crate) struct ListRetries {
    /// Most orders to list, the newest first
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    #[command(flatten)]
    format: Format,
}

#[async_trait]
impl Operation for InboxCommand {
    fn role(&self) -> Role {
        if matches!(self, Self::Retry(_)) { Role::Operator } else { Role::Viewer }
    }

    async fn answer(&self, db: &mut MySqlConnection, process: &Answering<'_>) -> anyhow::Result<Value> {
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
            Self::Retry(RetryDead { consumer, message, by, .. }) => {
                let actor = by.actor(process).context("give --because")?;
                let (number, messages) =
                    retry(db, (consumer.as_str(), *message), &actor).await.map_err(|error| refused(&error))?;
                let number = number.with_context(|| {
                    format!("the consumer `{consumer}` keeps no such dead message: see `relay inbox dead`")
                })?;
                Ok(json!({"retry": number, "messages": messages}))
            }
            Self::Retries(it) => Ok(serde_json::to_value(retries(db, it.limit).await.context(failed)?)?),
        }
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        match self {
            Self::List(it) => {
                let columns = ["consumer", "processed", "last_at", "dead", "last_dead_at", "remembers_since"];
                it.format.list(columns, answer)
            }
            Self::Dead(it) => {
                let columns = ["consumer", "message_id", "topic", "reason", "attempts", "died_at", "error"];
                it.format.list(columns, answer)
            }
            Self::Show(it) => it.format.list(["consumer", "outcome", "at", "reason", "error"], answer),
            Self::Retry(RetryDead { consumer, format, .. }) => {
                if format.json(answer)? {
                    return Ok(());
                }
                let number = |name| answer.get(name).and_then(Value::as_u64).unwrap_or_default();
                Ok(output::note(&format!(
                    "Retry {} of {} messages is ordered, and waits for a running consumer `{consumer}`: relay inbox \
                     retries",
                    number("retry"),
                    number("messages")
                ))?)
            }
            Self::Retries(it) => {
                let columns =
                    ["retry", "consumer", "message_id", "state", "processed", "failed", "ordered_at", "ended_at"];
                it.format.list(columns, answer)
            }
        }
    }
}
