//! `demo`: the shop, with servers around it.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::run::Run;
use crate::tools::{cargo, watch};

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Options of the demo: --seconds, --rate, --broker kafka|rabbitmq|both, --keep, --observe.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Demo {
    /// Builds the relay and the shop while servers are downloaded and started, and runs the shop with their addresses.
    pub(crate) async fn run(self) -> Result<ExitCode> {
        // The first build takes minutes: cargo shows its progress.
        let build = watch(cargo(["build", "--workspace", "--bin=relay", "--bin=demo"]));
        let build = async { build.await.context("the relay and the demo do not build") };
        let program = std::env::current_exe()?.with_file_name("demo").display().to_string();
        Run::new([vec![program], self.arguments].concat()).run_after(build).await
    }
}
