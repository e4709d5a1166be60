use std::io::Write as _;

use clap::Subcommand;

use super::{Format, table};
use crate::config::{show, source};

#[derive(Debug, Subcommand)]
pub(super) enum Settings {
    /// The effective settings and where each came from; secrets as ***.
    Show,
    /// A file with every setting, its default and its meaning.
    Example,
}

pub(super) fn show(settings: &source::Settings, format: Format) -> anyhow::Result<()> {
    table::print(["setting", "value", "from"], &show::rows(settings), format)
}

pub(super) fn example() -> anyhow::Result<()> {
    Ok(std::io::stdout().lock().write_all(show::example().as_bytes())?)
}
