//! `relay messages`.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use clap::{Args, Subcommand, value_parser};
use outbox_core::sqlx::MySqlConnection;
use outbox_relay::operate::{
    messages::{MessageFilter, MessageState, list, reveal},
    why::{Reference, why},
};
use parking_lot::Mutex;
use serde_json::Value;

use super::{
    Answering, Operation, Role, Word,
    by::By,
    moment::{Moment, micros, moment},
    words,
};
use crate::cli::output::{self, Format};

const FAILED: &str = "the messages cannot be read";
const COLUMNS: [&str; 9] =
    ["id", "enqueued_at", "topic", "event_type", "state", "reason", "attempts", "error", "message_id"];
/// The pause between two looks for new messages.
const EVERY: Duration = Duration::from_secs(1);
/// Rows of one look.
const TAIL: u64 = 5_000;
/// Messages that were there before.
const BEFORE: usize = 10;
/// Ids that are kept, so that no message is printed twice.
const SEEN: usize = 20_000;

/// The subcommands of `relay messages`.
#[derive(Debug, Subcommand)]
pub(crate) enum Messages {
    /// List messages of all states, the newest first
    List(ListMessages),
    /// Print messages as they are enqueued, until Ctrl-C
    Tail(TailMessages),
    /// Show a message, and with --reveal its key, headers and payload
    Show(ShowMessage),
}

/// Which ones.
#[derive(Debug, Args)]
struct WhichMessages {
    /// Only those of this topic
    #[arg(long)]
    topic: Option<String>,
    /// Only those with this key; without --topic, in the topics of the newest messages and of unsent ones
    #[arg(long)]
    key: Option<String>,
    /// Only those of this kind of event
    #[arg(long = "type")]
    event_type: Option<String>,
}

impl WhichMessages {
    fn filter(&self) -> MessageFilter {
        let topic = self.topic.clone();
        let key = self.key.clone();
        let event_type = self.event_type.clone();
        MessageFilter { topic, key, event_type, ..MessageFilter::default() }
    }
}

const LISTS: &str = "Topics and keys have no index. So the command looks at the newest 100,000 rows, for at most two
seconds, and says how far it came. --below goes on; --since and --until lead to the rows of a time.
Examples:
  relay messages list --topic orders --key 4711     # all of a key; other keys stay hidden
  relay messages list --type order.paid --since 2h
  relay messages list --state dead --limit 10";

const TAILS: &str = "Example:
  relay messages tail --topic orders";

const STATES: &[Word<MessageState>] = &[
    ("pending", "Due, and not claimed", MessageState::Pending),
    ("claimed", "In the hands of a relay", MessageState::Claimed),
    ("delayed", "It waits for a time or its key", MessageState::Delayed),
    ("dead", "Given up", MessageState::Dead),
    ("sent", "No longer in the queue: `relay why` tells where it went", MessageState::Sent),
];

/// Which ones, and how many.
#[derive(Debug, Args)]
#[command(after_help = LISTS)]
pub(crate) struct ListMessages {
    #[command(flatten)]
    which: WhichMessages,
    /// Only those in this state
    #[arg(long, value_parser = words(STATES))]
    state: Option<MessageState>,
    /// Only those that were enqueued at this time or later, such as 2026-11-26T08:00:00Z, or 2h (ago)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Moment>,
    /// Only those that were enqueued before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Moment>,
    /// Only those below this number
    #[arg(long, value_name = "ID")]
    below: Option<u64>,
    /// Most messages to list
    #[arg(long, default_value_t = 50, value_parser = value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Most rows to look at
    #[arg(long, value_name = "ROWS", default_value_t = 100_000, value_parser = value_parser!(u64).range(1..=1_000_000))]
    budget: u64,
    #[command(flatten)]
    format: Format,
}

/// Which ones.
#[derive(Debug, Args)]
#[command(after_help = TAILS)]
pub(crate) struct TailMessages {
    #[command(flatten)]
    which: WhichMessages,
    #[command(flatten)]
    format: Format,
    #[arg(skip)]
    seen: Mutex<Option<SeenMessages>>,
}

/// The messages that were printed, or there before.
#[derive(Debug)]
struct SeenMessages {
    ids: BTreeSet<u64>,
    /// Messages below this id are none of the new ones.
    floor: u64,
    /// The highest id that was looked at.
    last: u64,
}

const SHOWS: &str = "The account needs deploy/grants/revealer.sql to reveal, and the audit records it. Examples:
  relay messages show 1523
  relay messages show 1523 --reveal --because 'asked for by the customer'";

/// Which one.
#[derive(Debug, Args)]
#[command(after_help = SHOWS)]
pub(crate) struct ShowMessage {
    /// Its UUID, or its number in the tables
    message: Reference,
    /// Show its key, headers and payload, too
    #[arg(long, requires = "because")]
    reveal: bool,
    #[command(flatten)]
    by: By,
    #[command(flatten)]
    format: Format,
}

#[async_trait]
impl Operation for Messages {
    fn role(&self) -> Role {
        match self {
            Self::Show(ShowMessage { reveal: true, .. }) => Role::Revealer,
            _ => Role::Viewer,
        }
    }

    async fn answer(&self, db: &mut MySqlConnection, process: &Answering<'_>) -> anyhow::Result<Value> {
        match self {
            Self::List(it) => {
                let [since, until] = micros(db, [it.since, it.until]).await.context(FAILED)?;
                let filter = MessageFilter { state: it.state, since, until, ..it.which.filter() };
                let page = list(db, &filter, it.below, it.limit as usize, it.budget).await.context(FAILED)?;
                Ok(serde_json::to_value(page)?)
            }
            Self::Tail(it) => {
                let page = list(db, &it.which.filter(), None, usize::MAX, TAIL).await.context(FAILED)?;
                Ok(serde_json::to_value(page)?)
            }
            Self::Show(it) => it.answer(db, process).await,
        }
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        match self {
            Self::List(it) => {
                if it.format.json(answer)? {
                    return Ok(());
                }
                it.format.list(COLUMNS, answer.get("rows").unwrap_or(&Value::Null))?;
                output::rest(answer, "below")
            }
            Self::Tail(it) => it.show(answer),
            Self::Show(it) => super::why::show(it.format, answer),
        }
    }

    fn repeats(&self) -> Option<Duration> {
        matches!(self, Self::Tail(_)).then_some(EVERY)
    }
}

impl TailMessages {
    /// Prints those that were not seen, the oldest first. A message that was committed late has a lower id than others
    /// before it.
    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        let rows: Vec<_> = answer.get("rows").and_then(Value::as_array).into_iter().flatten().rev().cloned().collect();
        let id = |row: &Value| row.get("id").and_then(Value::as_u64).unwrap_or_default();
        let number = |name: &str| answer.get(name).and_then(Value::as_u64).unwrap_or_default();
        let end = number("next");
        let newest = number("newest");
        let mut seen = self.seen.lock();
        let Some(SeenMessages { ids, floor, last }) = seen.as_mut() else {
            *seen = Some(SeenMessages { ids: rows.iter().map(id).collect(), floor: end, last: newest });
            let before = rows.get(rows.len().saturating_sub(BEFORE)..).unwrap_or_default();
            return self.format.lines(COLUMNS, before, true);
        };
        if end > *last + 1 {
            output::note("There were more new messages than one look reads: some are not shown.")?;
        }
        *last = newest.max(*last);
        let new: Vec<_> = rows.into_iter().filter(|row| id(row) >= *floor && ids.insert(id(row))).collect();
        while ids.len() > SEEN {
            *floor = ids.pop_first().unwrap_or_default() + 1;
        }
        self.format.lines(COLUMNS, &new, false)
    }
}

impl ShowMessage {
    async fn answer(&self, db: &mut MySqlConnection, process: &Answering<'_>) -> anyhow::Result<Value> {
        let mut shown = serde_json::to_value(why(db, self.message).await.context("the message cannot be looked up")?)?;
        if !self.reveal {
            return Ok(shown);
        }
        let actor = self.by.actor(process).context("give --because")?;
        let revealed = reveal(db, self.message, &actor).await.map_err(|error| {
            let hint = "To reveal, an account needs deploy/grants/revealer.sql";
            anyhow::anyhow!("nothing was revealed: {}. {hint}", outbox_relay::state::session::describe(&error))
        })?;
        ensure!(revealed.is_some(), "there is no such message: see `relay why`");
        if let Value::Object(shown) = &mut shown {
            shown.extend(revealed.into_iter().flatten());
        }
        Ok(shown)
    }
}
