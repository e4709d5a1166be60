//! `run`: a command with servers around it.

use std::future::pending;
use std::pin::pin;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use testkit::servers::Kind;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::fleet::{Endpoint, Fleet};
use crate::holder::State;

/// The servers that the demo and the measurements need.
const NEEDED: [Kind; 3] = [Kind::MySql, Kind::Kafka, Kind::RabbitMq];

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
    /// Whether the command may use the servers that `up` left in the background.
    #[arg(skip)]
    shared: bool,
    /// The kinds of servers, if they are shared.
    #[arg(skip)]
    kinds: Vec<Kind>,
}

impl Run {
    /// A command of this project, with MySQL, Kafka and RabbitMQ: the servers of `up`, or new ones.
    pub(crate) fn new(command: Vec<String>) -> Self {
        Self { command, shared: true, kinds: NEEDED.to_vec() }
    }

    /// The same with MariaDB.
    pub(crate) fn with_all(command: Vec<String>) -> Self {
        Self { command, shared: true, kinds: Kind::ALL.to_vec() }
    }

    /// Returns the exit code of the command. The command itself gets a Ctrl-C, and a SIGTERM is forwarded to it. The
    /// servers stop after its end.
    pub(crate) async fn run(self) -> Result<ExitCode> {
        self.run_after(async { Ok(()) }).await
    }

    /// The same, with work that is done while the servers start.
    pub(crate) async fn run_after(self, work: impl Future<Output = Result<()>>) -> Result<ExitCode> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut servers = tokio::select! {
            both = async { tokio::try_join!(work, self.servers()) } => both?.1,
            _ = interrupt.recv() => return Ok(ExitCode::FAILURE),
            _ = terminate.recv() => return Ok(ExitCode::FAILURE),
        };
        let (program, args) = self.command.split_first().context("no command given")?;
        let mut child = Command::new(program);
        child.args(args).envs(servers.variables()).kill_on_drop(true);
        let mut child = child.spawn().with_context(|| format!("cannot run {program}"))?;
        let mut broken = pin!(servers.broken());
        let mut told = false;
        let status = loop {
            tokio::select! {
                status = child.wait() => break status?,
                error = &mut broken, if !told => {
                    tracing::error!("{error:#}");
                    told = true;
                }
                _ = terminate.recv() => hand_on(&child)?,
            }
        };
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
    }

    async fn servers(&self) -> Result<Servers> {
        match State::read().filter(|_| self.shared) {
            _ if self.shared && asks_for_help(&self.command) => Ok(Servers::None),
            Some(state) => Ok(Servers::Up(state)),
            None if self.shared => Ok(Servers::Started(Fleet::start_only(&self.kinds).await?)),
            None => Ok(Servers::Started(Fleet::start().await?)),
        }
    }
}

/// Whether a command of this project is asked for its help, and for no work.
pub(crate) fn asks_for_help(arguments: &[String]) -> bool {
    arguments.iter().any(|it| it == "--help" || it == "-h")
}

/// The source of the command's servers. Servers that were started stop when this is dropped.
enum Servers {
    None,
    Up(State),
    Started(Fleet),
}

impl Servers {
    /// Waits until a server that was started for the command ends on its own, and returns why.
    async fn broken(&mut self) -> anyhow::Error {
        match self {
            Self::None | Self::Up(_) => pending().await,
            Self::Started(fleet) => fleet.broken().await,
        }
    }

    /// An address from the user takes precedence.
    fn variables(&self) -> impl Iterator<Item = (String, String)> {
        let servers = match self {
            Self::None => Vec::new(),
            Self::Up(state) => state.servers.clone(),
            Self::Started(fleet) => fleet.endpoints(),
        };
        let given = |server: &Endpoint| std::env::var(&server.variable).is_ok_and(|address| !address.is_empty());
        servers.into_iter().filter(move |server| !given(server)).map(|server| (server.variable, server.address))
    }
}

fn hand_on(child: &Child) -> Result<()> {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
    pid.map_or(Ok(()), |pid| Ok(kill_process(pid, Signal::TERM)?))
}
