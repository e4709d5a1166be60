//! Commands that run other tools.

use std::ffi::OsStr;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::process::Command;

/// Runs a command whose output the user follows in the terminal.
pub(crate) async fn watch(mut command: Command) -> Result<()> {
    let status =
        command.stdin(Stdio::null()).status().await.with_context(|| format!("cannot run {}", name(&command)))?;
    ensure!(status.success(), "{} ended with {status}", name(&command));
    Ok(())
}

/// Runs a command beside others. Its output is shown only if it fails.
pub(crate) async fn quietly(mut command: Command) -> Result<()> {
    output(&mut command).await.map(drop)
}

/// The standard output of a command.
pub(crate) async fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
    let output = output.with_context(|| format!("cannot run {}", name(command)))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{} ended with {}\n{stdout}{}", name(command), output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(stdout)
}

/// The cargo that runs this program, with the given arguments.
pub(crate) fn cargo<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(testkit::servers::cache::repository());
    command
}

/// The packages of the workspace, as `cargo metadata` shows them.
pub(crate) async fn packages() -> Result<Vec<Value>> {
    let metadata = output(&mut cargo(["metadata", "--no-deps", "--format-version=1"])).await?;
    let mut metadata: Value = serde_json::from_str(&metadata)?;
    match metadata.get_mut("packages").map(Value::take) {
        Some(Value::Array(packages)) => Ok(packages),
        _ => bail!("cargo metadata lists no packages"),
    }
}

fn name(command: &Command) -> String {
    let command = command.as_std();
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// The processes of one cargo, which end with this: cargo alone would leave its tests running.
pub(crate) struct Group(Option<Pid>);

impl Group {
    pub(crate) fn of(leader: Option<u32>) -> Self {
        Self(leader.and_then(|id| Pid::from_raw(id.try_into().ok()?)))
    }

    pub(crate) const fn has_ended(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0
            && let Err(error) = kill_process_group(group, Signal::KILL)
        {
            tracing::warn!(%error, "cannot end cargo");
        }
    }
}
