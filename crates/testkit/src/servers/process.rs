//! A child process that never outlives the process that started it.
//!
//! Drop stops it. If there is no Drop (the parent is killed, exits, or gets Ctrl-C), its watchdog does. This is a small
//! shell that waits for the end of a pipe whose other end only the parent holds. The kernel closes that end however the
//! parent ends. The kernel's own parent-death signal does not help: it follows the thread that started the child, and
//! test threads come and go.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::future::ready;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use super::call::Call;
use super::wait;

/// Kills the process group on the pipe's first line, unless a second line comes before the pipe ends. It also removes
/// the server's folder. A process in a container may stay a zombie for good, so that the wait for its end is bounded.
const WATCHDOG: &str = r#"
read -r group || exit 0
read -r off && exit 0
kill -s KILL -- "-$group" 2>/dev/null
tries=0
while kill -s 0 -- "-$group" 2>/dev/null && [ "$tries" -lt 20 ]; do sleep 0.05; tries=$((tries + 1)); done
rm -rf -- "$1"
"#;

/// How to start a server: the call, the file for its output, and the folder that must not stay behind.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) call: Call,
    pub(crate) log: PathBuf,
    pub(crate) folder: PathBuf,
}

/// A running child, the leader of its own process group: a Ctrl-C in the terminal is not meant for it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    watchdog: Child,
}

impl Process {
    pub(crate) fn start(launch: &Launch) -> Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(&launch.log)?;
        let mut watchdog = watchdog(launch.folder.as_os_str())?;
        let mut command = launch.call.command();
        command.stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
        tell(&mut watchdog, &child.id().to_string())?;
        Ok(Self { child, watchdog })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How the process has ended; `None` if it has not.
    pub(crate) fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if !self.is_over() && waitid(WaitId::Pid(self.pid()?), ended)?.is_none() {
            return Ok(None);
        }
        self.finish().map(Some)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process_group(self.pid()?, signal).with_context(|| format!("cannot signal process {}", self.id()))
    }

    /// Sends SIGSTOP and waits for the stop: on a busy machine, other threads run until one of them sees the signal.
    pub(crate) fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        // The exit status is left for the caller that waits for the end.
        let stopped_or_ended = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid()?), stopped_or_ended)?;
        Ok(())
    }

    /// Whether it is frozen.
    pub(crate) fn is_paused(&self) -> Result<bool> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(self.pid()?), options)?.is_some())
    }

    /// Sends SIGKILL to the process and its children, and waits for its end.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.finish().map(drop)
    }

    /// Asks the process to stop; kills it if it still runs after `grace`.
    pub(crate) async fn stop(mut self, grace: Duration) -> Result<()> {
        kill_process(self.pid()?, Signal::TERM)?;
        let ended = wait::until(grace, "the server to stop", || ready(self.has_ended()));
        let in_time = ended.await.is_ok();
        self.finish()?;
        if in_time { Ok(()) } else { bail!("process {} did not stop within {grace:?} and was killed", self.id()) }
    }

    fn pid(&self) -> Result<Pid> {
        ensure!(!self.is_over(), "process {} has ended", self.id());
        i32::try_from(self.id()).ok().and_then(Pid::from_raw).context("the process has no valid id")
    }

    fn has_ended(&mut self) -> Result<()> {
        self.try_wait()?.map(drop).context("it is still running")
    }

    /// Whether the exit status was read. From then on the kernel may give the id to another process, within minutes
    /// where tests start many threads.
    fn is_over(&self) -> bool {
        self.watchdog.stdin.is_none()
    }

    /// Kills the group even if its leader has already ended: Erlang leaves helpers behind. The exit status is read only
    /// then: it keeps the id from other processes. The watchdog is called off last.
    fn finish(&mut self) -> Result<ExitStatus> {
        if self.is_over() {
            return Ok(self.child.wait()?);
        }
        let gone = self.signal(Signal::KILL);
        let status = self.child.wait()?;
        tell(&mut self.watchdog, "off")?;
        self.watchdog.stdin = None;
        self.watchdog.wait()?;
        tracing::debug!(pid = self.child.id(), signal = status.signal(), ?gone, "server process ended");
        Ok(status)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::warn!(pid = self.child.id(), %error, "cannot stop a server process");
        }
    }
}

fn watchdog(folder: &OsStr) -> Result<Child> {
    let mut shell = Command::new("sh");
    shell.args(["-c", WATCHDOG, "watchdog"]).arg(folder).stdin(Stdio::piped()).process_group(0);
    shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("cannot start sh")
}

fn tell(watchdog: &mut Child, line: &str) -> Result<()> {
    let pipe = watchdog.stdin.as_mut().context("the watchdog has no pipe")?;
    writeln!(pipe, "{line}").context("the watchdog is gone")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::PATIENCE;

    #[tokio::test]
    async fn a_process_that_has_ended_takes_no_signal() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("log");
        let folder = folder.path().to_path_buf();
        let mut process =
            Process::start(&Launch { call: Call::new("sh").arg("-c").arg("sleep 600 & exit 3"), log, folder })?;
        wait::until(PATIENCE, "the end", || ready(process.has_ended())).await?;
        let status = process.try_wait()?.context("it runs again")?;
        assert_eq!(status.code(), Some(3));
        assert!(process.signal(Signal::CONT).is_err(), "its id may be that of another process");
        Ok(())
    }
}
