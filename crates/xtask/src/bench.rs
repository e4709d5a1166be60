//! `bench`: measures, with servers around it.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use tokio::process::Command;

use crate::run::Run;

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// What to measure: drain, latency, idle or enqueue, and its options; --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Bench {
    /// Builds the relay and the measuring program with optimisation, and runs it with the servers' addresses.
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let build = ["build", "--quiet", "--release", "-p", "outbox-relay", "-p", "bench", "--bins"];
        if !Command::new(cargo).args(build).status().await?.success() {
            bail!("the relay and the measuring program do not build");
        }
        let debug = std::env::current_exe()?;
        let target = debug.parent().and_then(std::path::Path::parent).context("this program is in no target folder")?;
        let program = target.join("release/bench").display().to_string();
        Run::new([vec![program], self.arguments].concat()).run().await
    }
}
