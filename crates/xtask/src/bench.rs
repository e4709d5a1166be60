//! `bench`: runs the measurements, with servers around them.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::run::{Run, asks_for_help};
use crate::tools::{cargo, watch};

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// The measurement (drain, latency, idle, enqueue, volume, operate or jobs) and its options; --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Bench {
    /// Runs the measuring program with the servers' addresses.
    pub(crate) async fn run(self) -> Result<ExitCode> {
        Run::new([vec![program("bench", &self.arguments).await?], self.arguments].concat()).run().await
    }
}

/// Builds the relay and the programs that measure it with optimisation, which takes minutes, or without for a help
/// text. Returns the path of one of them.
pub(crate) async fn program(name: &str, arguments: &[String]) -> Result<String> {
    let debug = std::env::current_exe()?;
    let target = debug.parent().and_then(std::path::Path::parent).context("this program is in no target folder")?;
    // One build for all: separate builds would choose other features of their dependencies.
    let (options, folder) = if asks_for_help(arguments) {
        ("--workspace --bins", "debug")
    } else {
        ("--release -p mysql-outbox -p bench -p faults --bins", "release")
    };
    watch(cargo(["build", "--quiet"].into_iter().chain(options.split(' '))))
        .await
        .context("the relay and the measuring programs do not build")?;
    Ok(target.join(folder).join(name).display().to_string())
}
