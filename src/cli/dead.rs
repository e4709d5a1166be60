//! `relay dead`.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use outbox_core::check_schema_to_read;
use serde::Serialize;
use serde_json::Value;

use super::{
    database,
    output::{self, Format},
};
use crate::{
    config::Config,
    operate::dead::{Cursor, Filter, GroupBy, Page, groups, list},
};

/// The subcommands of `relay dead`.
#[derive(Debug, Subcommand)]
pub(super) enum DeadCommand {
    /// List messages that the relays gave up on, or count them
    List(List),
}

const EXAMPLES: &str = "Examples:
  relay dead list --group-by reason        # what went wrong, and how often
  relay dead list --reason too_large       # which messages
  relay dead list --after 0:1523           # the next page";

/// Which ones, and how.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct List {
    /// Only those with this reason
    #[arg(long)]
    reason: Option<String>,
    /// Only those of this topic
    #[arg(long)]
    topic: Option<String>,
    /// Only those of this lane
    #[arg(long)]
    lane: Option<u16>,
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

impl DeadCommand {
    /// Runs the command.
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<bool> {
        match self {
            Self::List(list) => list.run(config).await,
        }
    }
}

impl List {
    async fn run(self, config: &Config) -> anyhow::Result<bool> {
        let mut connection = database::connect(config).await?;
        check_schema_to_read(&mut connection).await?;
        let (by, after, limit) = (self.group_by, self.after, self.limit.max(1));
        let filter = Filter { reason: self.reason, topic: self.topic, lane: self.lane };
        let failed = "the dead messages cannot be read";
        match by {
            None => {
                let page = list(&mut connection, &filter, after, limit).await.context(failed)?;
                let columns =
                    ["id", "lane", "topic", "reason", "attempts", "died_at", "holds_key", "error", "message_id"];
                show(self.format, columns, &page)
            }
            Some(by) => {
                let page = groups(&mut connection, &filter, after, by).await.context(failed)?;
                show(self.format, ["messages", "group", "holding", "first", "last", "example"], &page)
            }
        }
    }
}

/// Prints the rows, and how to go on if there may be more.
fn show<T: Serialize, const N: usize>(format: Format, columns: [&str; N], page: &Page<T>) -> anyhow::Result<bool> {
    if format.json(page)? {
        return Ok(true);
    }
    let row = |row: &T| {
        let value = serde_json::to_value(row)?;
        Ok(columns.map(|column| value.get(column).cloned().unwrap_or_default()))
    };
    let rows: Vec<[Value; N]> = page.rows.iter().map(row).collect::<Result<_, serde_json::Error>>()?;
    format.rows(columns, &rows)?;
    if let Some(next) = page.next {
        let looked_at = page.looked_at;
        output::note(&format!("Looked at {looked_at} dead messages; there may be more: --after {next}"))?;
    }
    Ok(true)
}
