//! `up` and `down`: servers that stay in the background.

use std::fs;
use std::future::ready;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use testkit::servers::{cache, until};

use crate::fleet::{PROMETHEUS, exports};
use crate::holder::State;

/// The limit of a start: covers the very first one, which downloads everything.
const START: Duration = Duration::from_mins(10);
const STOP: Duration = Duration::from_mins(1);

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Also start Prometheus and Alertmanager with the files of `dashboards`. Prometheus reads a relay at its default
    /// address.
    #[arg(long)]
    pub(crate) observe: bool,
}

impl Up {
    pub(crate) async fn run(&self) -> Result<()> {
        let state = match State::read() {
            Some(state) => state,
            None => start(self.observe).await?,
        };
        let is_observed = state.servers.iter().any(|server| server.variable == PROMETHEUS);
        ensure!(is_observed || !self.observe, "the servers run without Prometheus: stop them with ./dev down");
        println!("{}\n# Stop them with: ./dev down", exports(&state.servers).trim_end());
        Ok(())
    }
}

pub(crate) async fn down() -> Result<()> {
    let Some(state) = State::read() else {
        println!("nothing to stop");
        return Ok(());
    };
    state.terminate()?;
    until(STOP, "the servers to stop", async || if state.is_running() { bail!("still running") } else { Ok(()) })
        .await?;
    println!("stopped");
    Ok(())
}

/// The holder is a separate process in its own process group: neither the end of this command nor a Ctrl-C reaches it.
async fn start(observe: bool) -> Result<State> {
    let log_file = cache::folder().join("up.log");
    fs::create_dir_all(cache::folder())?;
    let log = fs::File::create(&log_file)?;
    let mut holder = Command::new(std::env::current_exe()?);
    holder
        .arg("hold")
        .args(observe.then_some("--observe"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0);
    let mut holder = holder.spawn().context("cannot start the background process")?;
    let found = until(START, "the servers", || ready(found(&mut holder).transpose().context("not ready"))).await;
    found.and_then(|found| found).with_context(|| fs::read_to_string(&log_file).unwrap_or_default())
}

/// The state if it is written, `None` if it is not yet; an error if the holder has ended without it.
fn found(holder: &mut Child) -> Result<Option<State>> {
    match (State::read(), holder.try_wait()?) {
        (Some(state), _) => Ok(Some(state)),
        (None, None) => Ok(None),
        (None, Some(status)) => bail!("the servers did not start: {status}"),
    }
}
