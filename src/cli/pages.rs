//! `relay completions` and `relay man`.

use std::{fs, path::PathBuf};

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};

use super::{Cli, output};

/// For which shell.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  relay completions bash > /etc/bash_completion.d/relay")]
pub(super) struct Completions {
    shell: clap_complete::Shell,
}

impl Completions {
    /// Prints the script.
    pub(super) fn run(&self) -> anyhow::Result<bool> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "relay", &mut script);
        output::text(&String::from_utf8(script)?)?;
        Ok(true)
    }
}

/// Where to.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  relay man /usr/local/share/man/man1")]
pub(super) struct Man {
    /// An existing folder
    folder: PathBuf,
}

impl Man {
    /// Writes a page for each command.
    pub(super) fn run(&self) -> anyhow::Result<bool> {
        let folder = &self.folder;
        fs::metadata(folder).with_context(|| format!("the folder {} cannot be used", folder.display()))?;
        clap_mangen::generate_to(Cli::command(), folder)
            .with_context(|| format!("the pages cannot be written to {}", folder.display()))?;
        Ok(true)
    }
}
