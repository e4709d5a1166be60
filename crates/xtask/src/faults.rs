//! `faults`: breaks everything that can break, with servers around it.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use crate::run::Run;
use crate::tools::{cargo, watch};

#[derive(Debug, Args)]
pub(crate) struct Faults {
    /// Rows of the table, and options: --case, --minutes, --seed, --short, --parallel, --outage, --mix, --alerts,
    /// --faster, --list, --output.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Faults {
    /// Builds the relay as tests do (only such a build dies at named points) and runs the table with the servers'
    /// addresses.
    pub(crate) async fn run(self) -> Result<ExitCode> {
        if watch(cargo(["build", "--quiet", "--workspace", "--bins"])).await.is_err() {
            bail!("the relay and the faults do not build");
        }
        let program = std::env::current_exe()?.with_file_name("faults").display().to_string();
        Run::with_all([vec![program], self.arguments].concat()).run().await
    }
}
