//! The operator of an order, and the reason.

use anyhow::anyhow;
use clap::Args;
use outbox_core::{sqlx, store::operate::jobs::Actor};
use outbox_relay::state::session::describe;

use super::Answering;

/// The operator of an order, and the reason.
#[derive(Debug, Args)]
pub(super) struct By {
    /// The reason, for the audit
    #[arg(long, value_name = "TEXT", value_parser = text::<500>)]
    because: Option<String>,
    /// The name of the operator, for the audit, which also has the account of the database
    #[arg(long, value_name = "NAME", env = "USER", default_value = "unknown", value_parser = text::<100>)]
    actor: String,
}

impl By {
    /// Returns what the audit records; `None` without a reason.
    pub(super) fn actor(&self, process: &Answering<'_>) -> Option<Actor<'_>> {
        let because = self.because.as_deref()?;
        Some(Actor { name: &self.actor, via: process.via, reason: because })
    }
}

/// Takes a text that fits into a column of `MOST` characters.
fn text<const MOST: usize>(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("give some text".to_owned()),
        text if text.chars().count() > MOST => Err(format!("give at most {MOST} characters")),
        text => Ok(text.to_owned()),
    }
}

/// Returns the error of an order that the database refused.
pub(super) fn refused(error: &sqlx::Error) -> anyhow::Error {
    anyhow!("nothing was ordered: {}. Orders need the account of deploy/grants/operator.sql", describe(error))
}
