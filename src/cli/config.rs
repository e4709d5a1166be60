//! `relay config`.

use clap::Subcommand;

use super::{
    Arguments,
    output::{self, Format},
};
use crate::config;

/// What to do about the configuration.
#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Print the effective values and where each comes from; secrets as ***
    Show(Format),
    /// Print a commented configuration file
    Example,
    /// Print the JSON schema of the file, for editors
    Schema,
}

impl ConfigCommand {
    pub(super) fn run(self, options: &Arguments) -> anyhow::Result<bool> {
        match self {
            Self::Show(format) => {
                let values = options.load()?.values;
                let row =
                    |value: config::Effective| [value.key.into(), value.value.into(), value.origin.to_string().into()];
                format.rows(["key", "value", "origin"], &values.into_iter().map(row).collect::<Vec<_>>())?;
            }
            Self::Example => output::text(&config::example())?,
            Self::Schema => output::text(&format!("{:#}\n", config::schema()))?,
        }
        Ok(true)
    }
}
