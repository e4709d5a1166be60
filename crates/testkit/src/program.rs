//! Programs of the workspace as child processes: consumers and services that are killed, stopped, and started again.

use std::{
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::servers::{
    call::Call,
    process::{Launch, Process},
};

/// A running program. Drop kills it.
#[derive(Debug)]
pub struct Program {
    process: Process,
    log: PathBuf,
    // After the process, so that the folder is removed after the process has ended.
    _folder: TempDir,
}

impl Program {
    /// Starts a program with these variables in its environment.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(program: impl AsRef<Path>, environment: &[(&str, &str)]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("outbox-program-").tempdir()?;
        let log = folder.path().join("program.log");
        let call = Call::new(program.as_ref());
        let call = environment.iter().fold(call, |call, (name, value)| call.env(name, *value));
        let launch = Launch { call, log: log.clone(), folder: folder.path().to_path_buf() };
        Ok(Self { process: Process::start(&launch)?, log, _folder: folder })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Kills it at once (SIGKILL).
    ///
    /// # Errors
    /// When it has ended already.
    pub fn kill(&self) -> Result<()> {
        self.process.signal(Signal::KILL)
    }

    /// Freezes it (SIGSTOP).
    ///
    /// # Errors
    /// When it has ended already.
    pub fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    /// Resumes it after [`Program::pause`].
    ///
    /// # Errors
    /// When it has ended already.
    pub fn resume(&self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it still runs at the deadline; with its log.
    pub async fn wait_for_end(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let end = tokio::time::Instant::now() + deadline;
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status);
            }
            ensure!(tokio::time::Instant::now() < end, "it still runs after {deadline:?}\n{}", self.log()?);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asks it to stop (SIGTERM), and waits for an end without an error.
    ///
    /// # Errors
    /// When it takes longer, or ends with an error; with its log.
    pub async fn stop(&mut self, deadline: Duration) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        let status = self.wait_for_end(deadline).await?;
        ensure!(status.success(), "it ended with {status}\n{}", self.log()?);
        Ok(())
    }

    /// The output so far.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn log(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(&self.log)?).into_owned())
    }
}

/// The program `relay` of this build, for tests of other packages than its own.
///
/// # Errors
/// When it is not built.
pub fn relay() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let relay = test.ancestors().nth(2).context("the test has no folder")?.join("relay");
    ensure!(relay.is_file(), "{} is missing: build it with `cargo build --workspace --bins`", relay.display());
    Ok(relay)
}
