//! `relay keys`.

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use clap::{ArgGroup, Args, Subcommand, value_parser};
use outbox_core::{key_hash, sqlx::MySqlConnection};
use serde_json::Value;

use super::{Answering, Operation, messages::COLUMNS};
use crate::{
    cli::output::Format,
    operate::{
        keys::{hash_of, key, waiting_keys},
        why::Reference,
    },
};

const FAILED: &str = "the keys cannot be read";

/// The subcommands of `relay keys`.
#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// List the keys whose messages wait, by the first of these
    Blocked(Blocked),
    /// List the unsent messages of a key, and tell what the first one waits for
    Show(ShowKey),
}

/// How many.
#[derive(Debug, Args)]
pub(crate) struct Blocked {
    /// Most keys to list, those with the most messages first
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u32).range(1..=10_000))]
    limit: u32,
    #[command(flatten)]
    format: Format,
}

const SHOWS: &str =
    "Pending messages have no index of keys: those among the first 20,000 of the queue are listed. Examples:
  relay keys show 1523                       # the key of this message
  relay keys show --topic orders --key 4711";

/// One of these.
fn which() -> ArgGroup {
    ArgGroup::new("which").args(["message", "key"]).required(true)
}

/// Which one.
#[derive(Debug, Args)]
#[command(after_help = SHOWS, group = which())]
pub(crate) struct ShowKey {
    /// A message of the key: its UUID, or its number in the tables
    message: Option<Reference>,
    /// The topic of the key
    #[arg(long, requires = "key")]
    topic: Option<String>,
    /// The key
    #[arg(long, requires = "topic")]
    key: Option<String>,
    /// Most messages to list, the oldest first
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u32).range(1..=10_000))]
    limit: u32,
    #[command(flatten)]
    format: Format,
}

#[async_trait]
impl Operation for Keys {
    async fn answer(&self, db: &mut MySqlConnection, _: &Answering<'_>) -> anyhow::Result<Value> {
        match self {
            Self::Blocked(it) => {
                let keys = waiting_keys(db, it.limit).await.context(FAILED)?;
                Ok(serde_json::to_value(keys)?)
            }
            Self::Show(it) => it.answer(db).await,
        }
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        match self {
            Self::Blocked(it) => {
                let columns = ["messages", "id", "lane", "topic", "reason", "attempts", "due_at", "died_at", "error"];
                it.format.list(columns, answer)
            }
            Self::Show(it) => it.format.object_with_list(answer, "rows", COLUMNS),
        }
    }
}

impl ShowKey {
    async fn answer(&self, db: &mut MySqlConnection) -> anyhow::Result<Value> {
        let hash = match (self.message, &self.topic, &self.key) {
            (Some(message), ..) => hash_of(db, message).await.context(FAILED)?,
            (None, Some(topic), Some(key)) => Some(key_hash(topic, Some(key.as_bytes()))),
            (None, ..) => None,
        };
        ensure!(hash.is_some(), "there is no such message, or it has no key: see `relay why`");
        let key = key(db, hash.unwrap_or_default(), self.limit).await.context(FAILED)?;
        Ok(serde_json::to_value(key)?)
    }
}
