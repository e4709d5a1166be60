//! Relays as child processes: started with their own configuration file, killed, paused and asked to stop.

mod client;
mod metrics;
mod settings;

use std::{
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use tempfile::TempDir;

pub use self::{
    client::Client,
    metrics::{Metrics, ask, get, send},
    settings::Settings,
};
use crate::servers::{
    call::Call,
    free_port,
    process::{Launch, Process},
    until,
};

/// A running relay. Drop kills it.
#[derive(Debug)]
pub struct Relay {
    process: Process,
    log: PathBuf,
    port: u16,
    // After the process, so that the folder is removed after the process has ended.
    _folder: TempDir,
}

impl Relay {
    /// Starts the program `relay` with these settings. Returns at once: its metrics, its log and the tables show its
    /// work.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(program: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        Self::launch(program.as_ref(), "run", settings, free_port()?)
    }

    /// Starts `relay api` with these settings, on a port of its own.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_api(program: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        Self::serve(program.as_ref(), "api", settings)
    }

    /// Starts `relay console`, as [`Relay::start_api`].
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_console(program: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        Self::serve(program.as_ref(), "console", settings)
    }

    fn serve(program: &Path, command: &str, settings: &Settings) -> Result<Self> {
        let port = free_port()?;
        let settings = settings.clone().set("api", "listen", format!("127.0.0.1:{port}"));
        Self::launch(program, command, &settings, port)
    }

    fn launch(program: &Path, command: &str, settings: &Settings, port: u16) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("outbox-relay-").tempdir()?;
        let file = folder.path().join("relay.toml");
        let log = folder.path().join("relay.log");
        std::fs::write(&file, settings.render(port)?)?;
        let call = match settings.limits() {
            Some(script) => Call::new("sh").args(["-c", &script]).arg(program),
            None => Call::new(program),
        };
        let call = call.arg(command).arg("--config").arg(file);
        let call = settings.environment().iter().fold(call, |call, (name, value)| call.env(name, value));
        let launch = Launch { call, log: log.clone(), folder: folder.path().to_path_buf() };
        Ok(Self { process: Process::start(&launch)?, log, port, _folder: folder })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The port of its listener.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
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

    /// Waits until it pauses at the point that [`Settings::pause_at`] names.
    ///
    /// # Errors
    /// When it does not within the deadline; with its log.
    pub async fn wait_for_pause(&self, deadline: Duration) -> Result<()> {
        until(deadline, "a pause", || async {
            ensure!(self.process.is_paused()?, "the relay goes on");
            Ok(())
        })
        .await
        .with_context(|| self.log().unwrap_or_default())
    }

    /// Resumes it after [`Relay::pause`].
    ///
    /// # Errors
    /// When it has ended already.
    pub fn resume(&self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Asks it to stop (SIGTERM).
    ///
    /// # Errors
    /// When it has ended already.
    pub fn terminate(&self) -> Result<()> {
        self.process.signal(Signal::TERM)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it still runs at the deadline.
    pub async fn wait_for_end(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let end = tokio::time::Instant::now() + deadline;
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status);
            }
            ensure!(tokio::time::Instant::now() < end, "the relay still runs after {deadline:?}\n{}", self.log()?);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asks it to stop, and waits for an end without an error.
    ///
    /// # Errors
    /// When it takes longer, or ends with an error; with its log.
    pub async fn stop(&mut self, deadline: Duration) -> Result<()> {
        self.terminate()?;
        let status = self.wait_for_end(deadline).await?;
        ensure!(status.success(), "the relay ended with {status}\n{}", self.log()?);
        Ok(())
    }

    /// The log so far.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn log(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(&self.log)?).into_owned())
    }

    /// Its metrics.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn metrics(&self) -> Result<Metrics> {
        let (status, body) = self.get("/metrics").await?;
        ensure!(status == 200, "/metrics answered {status}");
        Ok(Metrics::parse(&body))
    }

    /// Its metrics, as soon as its listener answers.
    ///
    /// # Errors
    /// When it does not within the deadline; with its log.
    pub async fn metrics_within(&self, deadline: Duration) -> Result<Metrics> {
        let metrics = until(deadline, "a relay's metrics", async || self.metrics().await).await;
        metrics.with_context(|| format!("the relay's log:\n{}", self.log().unwrap_or_default()))
    }

    /// Asks its listener; returns the status and the body.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        metrics::get(self.port, path).await
    }

    /// Waits until its metrics are as wanted.
    ///
    /// # Errors
    /// When they are not at the deadline, or it has ended; with its log.
    pub async fn wait_for_metrics(
        &mut self,
        deadline: Duration,
        what: &str,
        wanted: impl Fn(&Metrics) -> bool,
    ) -> Result<()> {
        let outcome = until(deadline, what, || async {
            let metrics = self.metrics().await?;
            ensure!(wanted(&metrics), "the metrics are not as wanted:\n{metrics}");
            Ok(())
        });
        outcome.await.with_context(|| format!("the relay's log:\n{}", self.log().unwrap_or_default()))
    }

    /// Waits until its log contains a text.
    ///
    /// # Errors
    /// When it does not at the deadline; with its log.
    pub async fn wait_for_log(&self, deadline: Duration, text: &str) -> Result<()> {
        until(deadline, text, || async {
            let log = self.log()?;
            if log.contains(text) { Ok(()) } else { bail!("the relay's log:\n{log}") }
        })
        .await
    }
}

/// Keeps the log if `OUTBOX_TEST_LOGS` names a folder: it explains a test that fails only on a busy machine.
impl Drop for Relay {
    fn drop(&mut self) {
        let Some(folder) = std::env::var_os("OUTBOX_TEST_LOGS") else { return };
        let test = std::thread::current().name().unwrap_or_default().replace("::", "-");
        let kept = PathBuf::from(folder).join(format!("{test}-relay-{}.log", self.pid()));
        if let Err(error) = std::fs::copy(&self.log, &kept) {
            tracing::warn!(%error, "cannot keep the log of a relay");
        }
    }
}
