//! `relay purge`.

use anyhow::Context as _;
use async_trait::async_trait;
use clap::Args;
use outbox_core::sqlx::MySqlConnection;
use outbox_relay::operate::{purge::forecast, shown::span};
use serde_json::Value;

use super::{Answering, Operation};
use crate::{
    cli::output::{self, Format},
    config::Problem,
};

const EXAMPLES: &str =
    "Relays purge by themselves, one at a time, so there is nothing to order. The retention is that of this
configuration: give the same one as to the relays. Examples:
  relay purge --dry-run
  relay purge --dry-run --set retention.sent=3d        # what a shorter retention would delete";

/// How to print it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Purge {
    /// Count, and delete nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: Format,
}

#[async_trait]
impl Operation for Purge {
    fn problem(&self) -> Option<Problem> {
        let text = "relays purge by themselves: give --dry-run to see what they would delete. To keep rows for longer \
                    or shorter, change the keys of `retention` in the relays' configuration, and restart them";
        (!self.dry_run).then(|| Problem { at: "--dry-run".to_owned(), text: text.to_owned() })
    }

    async fn answer(&self, db: &mut MySqlConnection, process: &Answering<'_>) -> anyhow::Result<Value> {
        let forecast = forecast(db, &process.config.retention).await.context("the rows cannot be counted")?;
        Ok(serde_json::to_value(forecast)?)
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        if !self.format.json(answer)? {
            let mut shown = answer.clone();
            let kinds = shown.get_mut("kinds").and_then(Value::as_array_mut);
            kinds.into_iter().flatten().for_each(for_people);
            self.format.object_with_list(&shown, "kinds", ["kind", "retention", "rows", "oldest", "stays"])?;
        }
        let purger = answer.get("purger").and_then(Value::as_str);
        let holder = purger.map(|_| "The purger holds the lease, and deletes these rows in small portions.");
        let none = "No relay or worker holds the lease on the purging: nothing is deleted until one runs.";
        Ok(output::note(holder.unwrap_or(none))?)
    }
}

/// Writes the retention with units, and `+` behind a number that is not the whole.
fn for_people(kind: &mut Value) {
    let seconds = kind.get("retention_seconds").and_then(Value::as_i64);
    let retention = seconds.map_or_else(|| "for ever".to_owned(), |seconds| span(seconds.saturating_mul(1_000_000)));
    let rows = kind.get("rows").and_then(Value::as_u64).unwrap_or_default();
    let is_complete = kind.get("is_complete").is_some_and(|it| *it == true);
    if let Some(kind) = kind.as_object_mut() {
        kind.insert("retention".to_owned(), retention.into());
        kind.insert("rows".to_owned(), format!("{rows}{}", if is_complete { "" } else { "+" }).into());
    }
}
