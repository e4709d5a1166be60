//! `bench`: runs the measurements, with servers around them.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use tokio::process::Command;

use crate::run::Run;

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// The measurement (drain, latency, idle, enqueue, volume, operate or jobs) and its options; --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Bench {
    /// Runs the measuring program with the servers' addresses.
    pub(crate) async fn run(self) -> Result<ExitCode> {
        Run::new([vec![optimised("bench").await?], self.arguments].concat()).run().await
    }
}

/// Builds the relay and the programs that measure it with optimisation. Returns the path of one of them.
pub(crate) async fn optimised(program: &str) -> Result<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    // One build for all: separate builds would choose other features of their dependencies.
    let build = ["build", "--quiet", "--release", "-p", "mysql-outbox-relay", "-p", "bench", "-p", "faults", "--bins"];
    if !Command::new(cargo).args(build).status().await?.success() {
        bail!("the relay and the measuring programs do not build");
    }
    let debug = std::env::current_exe()?;
    let target = debug.parent().and_then(std::path::Path::parent).context("this program is in no target folder")?;
    Ok(target.join("release").join(program).display().to_string())
}
