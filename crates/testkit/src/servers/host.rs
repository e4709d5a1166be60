//! The common parts of all servers: kill, pause, stop and restart, as a child process or as a container.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::call::Call;
use super::docker::Compose;
use super::process::{Launch, Process};
use super::wait;

/// The time limit of one try to talk to a starting server.
const ATTEMPT: Duration = Duration::from_secs(10);

const GRACE: Duration = Duration::from_secs(30);

/// A server that this process started.
#[derive(Debug)]
pub(super) enum Host {
    Own(Own),
    Compose(Compose),
}

/// A server as a child process. The order of the fields is the order of their drop: first the process, then its folder.
#[derive(Debug)]
pub(super) struct Own {
    process: Option<Process>,
    launch: Launch,
    folder: TempDir,
}

impl Host {
    /// Starts `call` with its output in `server.log` of `folder`, which is removed with the server.
    pub(super) fn start(call: Call, folder: TempDir) -> Result<Self> {
        let launch = Launch { call, log: folder.path().join("server.log"), folder: folder.path().to_path_buf() };
        let process = Some(Process::start(&launch)?);
        Ok(Self::Own(Own { process, launch, folder }))
    }

    pub(super) fn pid(&self) -> Result<u32> {
        match self {
            Self::Own(own) => own.running().map(Process::id),
            Self::Compose(_) => bail!("the server runs in a container and has no process id here"),
        }
    }

    pub(super) fn folder(&self) -> Option<&Path> {
        match self {
            Self::Own(own) => Some(own.folder.path()),
            Self::Compose(_) => None,
        }
    }

    pub(super) fn log(&self) -> Option<PathBuf> {
        match self {
            Self::Own(own) => Some(own.launch.log.clone()),
            Self::Compose(_) => None,
        }
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        match self {
            Self::Own(own) => own.process.take().context("the server does not run")?.kill(),
            Self::Compose(compose) => compose.service("kill"),
        }
    }

    pub(super) fn pause(&self) -> Result<()> {
        match self {
            Self::Own(own) => own.running()?.pause(),
            Self::Compose(compose) => compose.service("pause"),
        }
    }

    pub(super) fn resume(&self) -> Result<()> {
        match self {
            Self::Own(own) => own.running()?.signal(Signal::CONT),
            Self::Compose(compose) => compose.service("unpause"),
        }
    }

    pub(super) async fn stop(&mut self) -> Result<()> {
        match self {
            Self::Own(own) => own.process.take().context("the server does not run")?.stop(GRACE).await,
            Self::Compose(compose) => compose.service("stop"),
        }
    }

    /// Restarts it with the same port and data; stops it first if it still runs.
    pub(super) async fn restart(&mut self) -> Result<()> {
        if let Self::Own(own) = self {
            if let Some(process) = own.process.take() {
                process.stop(GRACE).await?;
            }
            own.process = Some(Process::start(&own.launch)?);
            return Ok(());
        }
        self.stop().await?;
        if let Self::Compose(compose) = self { compose.service("start") } else { Ok(()) }
    }

    /// Waits until `attempt` succeeds. It does not wait for a server that has ended; the log explains either failure.
    pub(super) async fn ready<F>(&mut self, attempt: impl Fn() -> F) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        let start = Instant::now();
        // A starting server may accept a connection and forget it: lapin would wait for ever.
        while let Err(error) = wait::within(ATTEMPT, attempt()).await {
            self.check()?;
            if start.elapsed() > wait::PATIENCE {
                return Err(
                    self.explain(&error.context(format!("the server did not answer within {:?}", wait::PATIENCE)))
                );
            }
            sleep(wait::PAUSE).await;
        }
        Ok(())
    }

    /// An error if the server has ended on its own, explained by its log. A container counts as running.
    pub(super) fn check(&mut self) -> Result<()> {
        let Self::Own(own) = self else { return Ok(()) };
        match own.process.as_mut().context("the server does not run")?.try_wait()? {
            Some(status) => Err(self.explain(&anyhow!("the server ended on its own ({status})"))),
            None => Ok(()),
        }
    }

    fn explain(&self, error: &anyhow::Error) -> anyhow::Error {
        match self {
            Self::Own(own) => wait::with_log(error, &own.launch.log),
            Self::Compose(compose) => anyhow!("{error:#}\n{}", compose.logs()),
        }
    }
}

impl Own {
    fn running(&self) -> Result<&Process> {
        self.process.as_ref().context("the server does not run")
    }
}

/// A fresh folder for a server's data. It is in the system's folder for temporary files, because a socket's path is
/// limited to about a hundred bytes.
pub(super) fn folder(name: &str) -> Result<TempDir> {
    tempfile::Builder::new().prefix(&format!("outbox-{name}-")).tempdir().context("cannot create a folder for a server")
}

/// Runs a blocking step away from the asynchronous threads.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context("a step of the start was cancelled")?
}
