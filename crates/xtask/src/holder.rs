//! The process that holds the servers of `up`, and the file that leads to it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use testkit::servers::cache;
use tokio::signal::unix::{SignalKind, signal};

use crate::fleet::{Endpoint, Fleet};

/// The process that holds the servers. Its start time distinguishes it from a later process with the same id.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) pid: u32,
    started: String,
    pub(crate) servers: Vec<Endpoint>,
}

pub(crate) fn state_file() -> PathBuf {
    cache::folder().join("up.json")
}

/// Starts the servers, writes the file, and waits for a signal to stop. A closed terminal does not stop it.
pub(crate) async fn hold(observe: bool) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let _hangup = signal(SignalKind::hangup())?;
    let stop = async move {
        tokio::select! { _ = terminate.recv() => (), _ = interrupt.recv() => () }
    };
    tokio::pin!(stop);
    let start = async {
        let fleet = Fleet::start().await?;
        if observe { fleet.observed().await } else { Ok(fleet) }
    };
    let fleet = tokio::select! {
        fleet = start => fleet?,
        () = &mut stop => return Ok(()),
    };
    let pid = std::process::id();
    let started = started(pid).context("this process has no start time")?;
    State { pid, started, servers: fleet.endpoints() }.write()?;
    stop.await;
    drop(fleet);
    fs::remove_file(state_file()).context("cannot remove the state file")
}

impl State {
    /// The running holder, if any. The file of a dead holder is ignored.
    pub(crate) fn read() -> Option<Self> {
        let state: Self = serde_json::from_str(&fs::read_to_string(state_file()).ok()?).ok()?;
        state.is_running().then_some(state)
    }

    /// A reader never sees an incomplete file.
    fn write(&self) -> Result<()> {
        let unfinished = state_file().with_extension("unfinished");
        fs::write(&unfinished, serde_json::to_string_pretty(self)?)?;
        Ok(fs::rename(unfinished, state_file())?)
    }

    pub(crate) fn is_running(&self) -> bool {
        started(self.pid).is_some_and(|started| started == self.started)
    }

    pub(crate) fn terminate(&self) -> Result<()> {
        let pid =
            i32::try_from(self.pid).ok().and_then(Pid::from_raw).context("the state file has no valid process id")?;
        Ok(kill_process(pid, Signal::TERM)?)
    }
}

/// The start time of a process, in the system's own format; `None` if the process has ended.
fn started(pid: u32) -> Option<String> {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(status) => started_in(&status),
        Err(_) if fs::exists("/proc/self/stat").unwrap_or(false) => None,
        Err(_) => {
            let output = Command::new("ps").args(["-o", "lstart=", "-p", &pid.to_string()]).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
    }
}

/// The 22nd field of `/proc/<pid>/stat`. The second one, the name, may hold anything, so counting starts after it.
fn started_in(status: &str) -> Option<String> {
    let (_, fields) = status.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    if fields.next()? == "Z" { None } else { fields.nth(18).map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::started_in;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let rest: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        assert_eq!(started_in(&format!("7 (a ) name) S {}", rest.join(" "))), Some("22".to_owned()));
        assert_eq!(started_in(&format!("7 (gone) Z {}", rest.join(" "))), None);
    }
}
