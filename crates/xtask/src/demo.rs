//! `demo`: the shop, with servers around it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use tokio::process::Command;

use crate::fleet::Fleet;
use crate::run::Run;
use crate::tools::{cargo, quietly, watch};

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Options of the demo: --seconds, --rate, --broker kafka|rabbitmq|both, --keep, --observe.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Demo {
    /// Builds the relay and the shop while servers are downloaded and started, and runs the shop with their addresses.
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let program = program()?.display().to_string();
        Run::new([vec![program], self.arguments].concat()).run_after(build()).await
    }
}

/// Runs the shop for some seconds: the first command of every user has to end well.
pub(crate) async fn check(fleet: &Fleet) -> Result<String> {
    // With the features that the tests have enabled, nothing is built twice.
    watch(cargo(["build", "--quiet", "--workspace", "--tests", "--bin=relay", "--bin=demo"])).await?;
    let mut shop = Command::new(program()?);
    shop.args(["--seconds", "6"]).envs(fleet.endpoints().into_iter().map(|server| (server.variable, server.address)));
    quietly(shop).await.map(|()| String::new())
}

/// The first build takes minutes: cargo shows its progress.
async fn build() -> Result<()> {
    let build = watch(cargo(["build", "--workspace", "--bin=relay", "--bin=demo"])).await;
    build.context("the relay and the demo do not build")
}

fn program() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("demo"))
}
