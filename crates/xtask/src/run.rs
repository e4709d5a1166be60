//! `run`: a command with servers around it.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use crate::fleet::Fleet;

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

impl Run {
    /// This command.
    pub(crate) fn new(command: Vec<String>) -> Self {
        Self { command }
    }

    /// Ends with the exit code of the command. A Ctrl-C reaches the command itself; the servers stop after it.
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let fleet = tokio::select! {
            fleet = Fleet::start() => fleet?,
            _ = interrupt.recv() => return Ok(ExitCode::FAILURE),
        };
        let (program, args) = self.command.split_first().context("no command given")?;
        let mut command = Command::new(program);
        command.args(args).envs(fleet.endpoints().into_iter().map(|server| (server.variable, server.address)));
        let mut command = command.kill_on_drop(true).spawn().with_context(|| format!("cannot run {program}"))?;
        let status = tokio::select! {
            status = command.wait() => status?,
            _ = terminate.recv() => return Ok(ExitCode::FAILURE),
        };
        drop(fleet);
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
    }
}
