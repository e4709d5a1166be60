//! `relay keys`.

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use clap::{ArgGroup, Args, Subcommand, value_parser};
use outbox_core::{key_hash, sqlx::MySqlConnection};
use outbox_relay::operate::{
    keys::{hash_of, key, waiting_keys},
    unsent::Cursor,
    why::Reference,
};
use serde_json::Value;

use super::{Answering, Operation};
use crate::cli::output::{self, Format};

const FAILED: &str = "the keys cannot be read";

/// The subcommands of `relay keys`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
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
    /// Begin behind this place in the pending messages
    #[arg(long, value_name = "LANE:ID", default_value = "0:0", hide_default_value = true)]
    after: Cursor,
    /// Most messages to list, the oldest first
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u32).range(1..=10_000))]
    limit: u32,
    #[command(flatten)]
    format: Format,
}

#[async_trait]
impl Operation for KeysCommand {
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
            Self::Show(it) => it.show(answer),
        }
    }
}

impl ShowKey {
    async fn answer(&self, db: &mut MySqlConnection) -> anyhow::Result<Value> {
        let hash = match (self.message, &self.topic, &self.key) {
            (Some(message), ..) => {
                let hash = hash_of(db, message).await.context(FAILED)?;
                hash.context("there is no such message: see `relay why`")?
            }
            (None, Some(topic), Some(key)) => key_hash(topic, Some(key.as_bytes())),
            (None, ..) => 0,
        };
        ensure!(hash != 0, "the message has no key: no other waits for it");
        let key = key(db, hash, self.after, self.limit).await.context(FAILED)?;
        Ok(serde_json::to_value(key)?)
    }

    /// Prints what the first one waits for, the rows, and how to go on.
    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        if self.format.json(answer)? {
            return Ok(());
        }
        let first = answer.get("first").filter(|first| !first.is_null());
        match first {
            Some(first) => self.format.object_with_list(first, "", [""])?,
            None => output::note("No message of this key is in the way of a later one.")?,
        }
        let columns = ["id", "lane", "state", "reason", "attempts", "due_at", "died_at", "holds_key", "error"];
        self.format.list_below(answer, "rows", columns)?;
        output::rest(answer, "after")
    }
}
