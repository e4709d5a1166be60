//! `soak`: a load for hours, with servers around it.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::bench::program;
use crate::run::Run;

#[derive(Debug, Args)]
pub(crate) struct Soak {
    /// Options: --hours or --minutes, both with fractions; --rate (transactions a second: 50 by default, and less in
    /// long runs, because the judge keeps every message in memory, about 5 KB a transaction); --broker, --largest,
    /// --every, --keep, --seed, --output; --help explains them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Soak {
    /// Runs the load and its judge with the servers' addresses.
    pub(crate) async fn run(self) -> Result<ExitCode> {
        Run::new([vec![program("soak", &self.arguments).await?], self.arguments].concat()).run().await
    }
}
