//! `relay pending`, `relay delayed` and `relay dead`: list messages, and order what happens to them.

use anyhow::Context as _;
use async_trait::async_trait;
use clap::{ArgGroup, Args, Subcommand, value_parser};
use outbox_core::{sqlx::MySqlConnection, store::operate::find::StateTable};
use outbox_relay::operate::{
    jobs::{Action, order, plan},
    unsent::{Cursor, Filter, GroupBy, find, groups, list},
    why::Reference,
};
use serde_json::Value;

use super::{
    Answering, Operation, Role, Word,
    by::refused,
    plan::{self, Ordered},
    words,
};
use crate::cli::output::{self, Format};

/// The subcommands of `relay pending`.
#[derive(Debug, Subcommand)]
pub(crate) enum PendingCommand {
    /// List messages that are due and not sent, or count them
    List(List),
}

/// The subcommands of `relay delayed`.
#[derive(Debug, Subcommand)]
pub(crate) enum DelayedCommand {
    /// List messages that wait for a time or for their key, or count them
    List(List),
    /// Publish waiting messages now, such as those of a broker that is back
    Retry(Order),
    /// Take waiting messages of a replay back; the messages stay, as sent
    Discard(Order),
}

/// The subcommands of `relay dead`.
#[derive(Debug, Subcommand)]
pub(crate) enum DeadCommand {
    /// List messages that the relays gave up on, or count them
    List(List),
    /// Publish dead messages again, in the order of their keys
    Retry(Order),
    /// Let the later messages of their keys go on without them; the dead ones stay
    Release(Order),
    /// Delete dead messages for good; the later messages of their keys go on
    Discard(Order),
}

const FAILED: &str = "the messages cannot be read";

#[async_trait]
impl Operation for PendingCommand {
    async fn answer(&self, db: &mut MySqlConnection, _: &Answering<'_>) -> anyhow::Result<Value> {
        let Self::List(what) = self;
        what.answer(db, StateTable::Pending).await
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        let Self::List(what) = self;
        what.show(answer, "enqueued_at")
    }
}

#[async_trait]
impl Operation for DelayedCommand {
    fn role(&self) -> Role {
        match self {
            Self::List(_) => Role::Viewer,
            Self::Retry(what) | Self::Discard(what) => what.order.role(),
        }
    }

    async fn answer(&self, db: &mut MySqlConnection, process: &Answering<'_>) -> anyhow::Result<Value> {
        match self {
            Self::List(what) => what.answer(db, StateTable::Delayed).await,
            Self::Retry(what) => what.answer(db, Action::Hurry, process).await,
            Self::Discard(what) => what.answer(db, Action::DiscardDelayed, process).await,
        }
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        match self {
            Self::List(what) => what.show(answer, "due_at"),
            Self::Retry(what) | Self::Discard(what) => what.show(answer),
        }
    }
}

#[async_trait]
impl Operation for DeadCommand {
    fn role(&self) -> Role {
        match self {
            Self::List(_) => Role::Viewer,
            Self::Retry(what) | Self::Release(what) | Self::Discard(what) => what.order.role(),
        }
    }

    async fn answer(&self, db: &mut MySqlConnection, process: &Answering<'_>) -> anyhow::Result<Value> {
        match self {
            Self::List(what) => what.answer(db, StateTable::Dead).await,
            Self::Retry(what) => what.answer(db, Action::Retry, process).await,
            Self::Release(what) => what.answer(db, Action::Release, process).await,
            Self::Discard(what) => what.answer(db, Action::Discard, process).await,
        }
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        match self {
            Self::List(what) => what.show(answer, "died_at"),
            Self::Retry(what) | Self::Release(what) | Self::Discard(what) => what.show(answer),
        }
    }
}

const EXAMPLES: &str = "Examples:
  relay dead list --group-by reason        # what went wrong, and how often
  relay dead list --reason too_large       # which messages
  relay dead list --after 0:1523           # the next page
  relay delayed list --group-by topic --reason unroutable";

/// Those of interest.
#[derive(Debug, Args)]
struct WhichUnsent {
    /// Only those with this reason
    #[arg(long)]
    reason: Option<String>,
    /// Only those of this topic
    #[arg(long)]
    topic: Option<String>,
    /// Only those whose last error contains this text
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only those of this lane
    #[arg(long)]
    lane: Option<u16>,
}

impl WhichUnsent {
    fn filter(&self) -> Filter {
        let reason = self.reason.clone();
        let topic = self.topic.clone();
        let error = self.error.clone();
        Filter { reason, topic, error, lane: self.lane, id: None }
    }
}

const PROPERTIES: &[Word<GroupBy>] = &[
    ("reason", "Their reason", GroupBy::Reason),
    ("topic", "Their topic", GroupBy::Topic),
    ("error", "Their reason and the text of their last error", GroupBy::Error),
    ("lane", "Their lane", GroupBy::Lane),
];

/// Which ones, and how.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct List {
    #[command(flatten)]
    which: WhichUnsent,
    /// Count them by this instead
    #[arg(long, value_parser = words(PROPERTIES))]
    group_by: Option<GroupBy>,
    /// Begin behind this place
    #[arg(long, value_name = "LANE:ID", default_value = "0:0", hide_default_value = true)]
    after: Cursor,
    /// Most messages to list
    #[arg(long, default_value_t = 50, value_parser = value_parser!(u32).range(1..=10_000))]
    limit: u32,
    #[command(flatten)]
    format: Format,
}

impl List {
    async fn answer(&self, db: &mut MySqlConnection, table: StateTable) -> anyhow::Result<Value> {
        let filter = &self.which.filter();
        let after = self.after;
        let page = match self.group_by {
            None => serde_json::to_value(list(db, table, filter, after, self.limit as usize).await.context(FAILED)?)?,
            Some(by) => serde_json::to_value(groups(db, table, filter, after, by).await.context(FAILED)?)?,
        };
        Ok(page)
    }

    /// Prints the rows, and how to go on if there may be more.
    fn show(&self, answer: &Value, time: &str) -> anyhow::Result<()> {
        if self.format.json(answer)? {
            return Ok(());
        }
        let rows = answer.get("rows").unwrap_or(&Value::Null);
        if self.group_by.is_some() {
            self.format.list(["messages", "group", "holding", "first", "last", "example"], rows)?;
        } else {
            let columns = ["id", "lane", "topic", "reason", "attempts", time, "holds_key", "error", "message_id"];
            self.format.list(columns, rows)?;
        }
        output::rest(answer, "after")
    }
}

const ORDERS: &str = "Without --yes the plan is shown, and nothing changes. Examples:
  relay dead retry 1523                                  # the plan for one message
  relay dead retry --reason unroutable --topic orders    # the plan for many
  relay dead retry --reason unroutable --yes --because 'the queue is bound now'
  relay delayed retry --reason parked --yes --because 'the broker is back'
  relay delayed discard --all --yes --because 'the replay had a wrong name'
  relay jobs                                             # how far the relays are";

/// At least one of these, so that nobody retries all by mistake.
fn which() -> ArgGroup {
    ArgGroup::new("which").args(["message", "all", "reason", "topic", "error", "lane"]).required(true).multiple(true)
}

/// Which ones, and why.
#[derive(Debug, Args)]
#[command(after_help = ORDERS, group = which())]
pub(crate) struct Order {
    /// One message: its UUID, or its number in the tables
    message: Option<Reference>,
    /// All of them
    #[arg(long, conflicts_with_all = ["message", "WhichUnsent"])]
    all: bool,
    #[command(flatten)]
    which: WhichUnsent,
    #[command(flatten)]
    order: Ordered,
}

impl Order {
    async fn answer(&self, db: &mut MySqlConnection, action: Action, process: &Answering<'_>) -> anyhow::Result<Value> {
        let mut filter = self.which.filter();
        if let Some(message) = self.message {
            let place = find(db, action.table(), message).await.context(FAILED)?;
            let Cursor { lane, id } = place.context("the message is not in this state: see `relay why`")?;
            (filter.lane, filter.id) = (Some(lane), Some(id));
        }
        let plan = plan(db, action, &filter, self.order.rate).await.context(FAILED)?;
        let job = match self.order.actor(process) {
            Some(actor) if plan.messages > 0 => {
                let ordered = order(db, &plan, &filter, self.order.rate, &actor).await;
                Some(ordered.map_err(|error| refused(&error))?)
            }
            _ => None,
        };
        plan::answer(&plan, job)
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        let columns = ["id", "lane", "topic", "reason", "attempts", "enqueued_at", "died_at", "holds_key", "error"];
        self.order.show(answer, columns)
    }
}
