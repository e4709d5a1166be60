//! `relay pending`, `relay delayed`, `relay dead` and `relay keys`: list messages, and order what happens to them.

use anyhow::Context as _;
use clap::{ArgGroup, Args, Subcommand};
use outbox_core::store::find::StateTable;
use serde::Serialize;

use super::{
    by::refused,
    database,
    output::{self, Format},
    plan::{Ordered, show},
};
use crate::{
    config::Config,
    operate::{
        jobs::{Action, order, plan},
        unsent::{Cursor, Filter, GroupBy, Page, find, groups, list, waiting_keys},
        why::Reference,
    },
};

/// The subcommands of `relay pending`.
#[derive(Debug, Subcommand)]
pub(super) enum Pending {
    /// List messages that are due and not sent, or count them
    List(List),
}

/// The subcommands of `relay delayed`.
#[derive(Debug, Subcommand)]
pub(super) enum Delayed {
    /// List messages that wait for a time or for their key, or count them
    List(List),
    /// Publish waiting messages now, such as those of a broker that is back
    Retry(Order),
}

/// The subcommands of `relay dead`.
#[derive(Debug, Subcommand)]
pub(super) enum Dead {
    /// List messages that the relays gave up on, or count them
    List(List),
    /// Publish dead messages again, in the order of their keys
    Retry(Order),
    /// Let the later messages of their keys go on without them; the dead ones stay
    Release(Order),
    /// Delete dead messages for good; the later messages of their keys go on
    Discard(Order),
}

/// The subcommands of `relay keys`.
#[derive(Debug, Subcommand)]
pub(super) enum Keys {
    /// List the keys whose messages wait, by the first of these; `relay why` tells what it waits for
    Blocked(Blocked),
}

/// How many.
#[derive(Debug, Args)]
pub(super) struct Blocked {
    /// Most keys to list, those with the most messages first
    #[arg(long, default_value_t = 20)]
    limit: u32,
    #[command(flatten)]
    format: Format,
}

impl Keys {
    /// Runs the command.
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<bool> {
        let Self::Blocked(Blocked { limit, format }) = self;
        let mut connection = database::connect_to_read(config).await?;
        let keys = waiting_keys(&mut connection, limit).await.context("the keys cannot be read")?;
        let columns = ["messages", "id", "lane", "topic", "reason", "attempts", "due_at", "died_at", "error"];
        format.values(columns, &keys)?;
        Ok(true)
    }
}

impl Pending {
    /// Runs the command.
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<bool> {
        let Self::List(what) = self;
        what.run(config, StateTable::Pending).await
    }
}

impl Delayed {
    /// Runs the command.
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<bool> {
        match self {
            Self::List(what) => what.run(config, StateTable::Delayed).await,
            Self::Retry(what) => what.run(config, Action::Hurry).await,
        }
    }
}

impl Dead {
    /// Runs the command.
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<bool> {
        match self {
            Self::List(what) => what.run(config, StateTable::Dead).await,
            Self::Retry(what) => what.run(config, Action::Retry).await,
            Self::Release(what) => what.run(config, Action::Release).await,
            Self::Discard(what) => what.run(config, Action::Discard).await,
        }
    }
}

const EXAMPLES: &str = "Examples:
  relay dead list --group-by reason        # what went wrong, and how often
  relay dead list --reason too_large       # which messages
  relay dead list --after 0:1523           # the next page
  relay delayed list --group-by topic --reason unroutable";

/// Which ones, and how.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct List {
    #[command(flatten)]
    filter: Filter,
    /// Count them by this instead
    #[arg(long, value_enum)]
    group_by: Option<GroupBy>,
    /// Begin behind this place
    #[arg(long, value_name = "LANE:ID", default_value = "0:0", hide_default_value = true)]
    after: Cursor,
    /// Most messages to list
    #[arg(long, default_value_t = 50)]
    limit: usize,
    #[command(flatten)]
    format: Format,
}

impl List {
    async fn run(self, config: &Config, table: StateTable) -> anyhow::Result<bool> {
        let mut connection = database::connect_to_read(config).await?;
        let (by, after, limit) = (self.group_by, self.after, self.limit.max(1));
        let filter = self.filter;
        let failed = "the messages cannot be read";
        match by {
            None => {
                let page = list(&mut connection, table, &filter, after, limit).await.context(failed)?;
                let time = match table {
                    StateTable::Pending => "enqueued_at",
                    StateTable::Delayed => "due_at",
                    StateTable::Dead => "died_at",
                };
                let columns = ["id", "lane", "topic", "reason", "attempts", time, "holds_key", "error", "message_id"];
                show_page(self.format, columns, &page)
            }
            Some(by) => {
                let page = groups(&mut connection, table, &filter, after, by).await.context(failed)?;
                show_page(self.format, ["messages", "group", "holding", "first", "last", "example"], &page)
            }
        }
    }
}

const ORDERS: &str = "Without --yes the plan is shown, and nothing changes. Examples:
  relay dead retry 1523                                  # the plan for one message
  relay dead retry --reason unroutable --topic orders    # the plan for many
  relay dead retry --reason unroutable --yes --because 'the queue is bound now'
  relay delayed retry --reason parked --yes --because 'the broker is back'
  relay jobs                                             # how far the relays are";

/// At least one of these, so that nobody retries all by mistake.
fn which() -> ArgGroup {
    ArgGroup::new("which").args(["message", "all", "reason", "topic", "error", "lane"]).required(true).multiple(true)
}

/// Which ones, and why.
#[derive(Debug, Args)]
#[command(after_help = ORDERS, group = which())]
pub(super) struct Order {
    /// One message: its UUID, or its number in the tables
    message: Option<Reference>,
    /// All of them
    #[arg(long, conflicts_with_all = ["message", "Filter"])]
    all: bool,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    order: Ordered,
}

impl Order {
    async fn run(self, config: &Config, action: Action) -> anyhow::Result<bool> {
        let mut connection = database::connect_to_read(config).await?;
        let failed = "the messages cannot be read";
        let mut filter = self.filter;
        if let Some(message) = self.message {
            let place = find(&mut connection, action.table(), message).await.context(failed)?;
            let Cursor { lane, id } = place.context("the message is not in this state: see `relay why`")?;
            (filter.lane, filter.id) = (Some(lane), Some(id));
        }
        let plan = plan(&mut connection, action, &filter, self.order.rate).await.context(failed)?;
        let job = match self.order.actor() {
            Some(actor) if plan.messages > 0 => Some(
                order(&mut connection, &plan, &filter, self.order.rate, &actor)
                    .await
                    .map_err(|error| refused(&error))?,
            ),
            _ => None,
        };
        let columns = ["id", "lane", "topic", "reason", "attempts", "enqueued_at", "died_at", "holds_key", "error"];
        show(self.order.format, job, &plan, columns)?;
        Ok(true)
    }
}

/// Prints the rows, and how to go on if there may be more.
fn show_page<T: Serialize, const N: usize>(format: Format, columns: [&str; N], page: &Page<T>) -> anyhow::Result<bool> {
    if format.json(page)? {
        return Ok(true);
    }
    format.values(columns, &page.rows)?;
    if let Some(next) = page.next {
        let looked_at = page.looked_at;
        output::note(&format!("Looked at {looked_at} messages; there may be more: --after {next}"))?;
    }
    Ok(true)
}
