//! A program with its arguments and environment, recorded so that it can run again: a killed server restarts with
//! exactly the call that started it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// A program, its arguments and its environment variables.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    program: PathBuf,
    args: Vec<OsString>,
    envs: Vec<(OsString, OsString)>,
}

impl Call {
    pub(crate) fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), args: Vec::new(), envs: Vec::new() }
    }

    pub(crate) fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub(crate) fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// `--name=value`, the form that every server here understands.
    pub(crate) fn option(self, name: &str, value: impl AsRef<Path>) -> Self {
        let mut arg = OsString::from(format!("--{name}="));
        arg.push(value.as_ref());
        self.arg(arg)
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.envs.push((name.into(), value.into()));
        self
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.envs.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        command
    }

    /// Runs it to its end and returns its stdout; an error contains its stderr.
    pub(crate) fn output(&self) -> Result<String> {
        finish(&mut self.command())
    }
}

/// Runs `command` to its end. An error contains both of its streams, because some tools explain errors on the wrong
/// one.
pub(crate) fn finish(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{} ended with {}: {}{stdout}",
        command.get_program().display(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(stdout)
}

/// The program `name` on the PATH. The folders of system daemons are searched too: a user's PATH often lacks them.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let daemons = ["/usr/local/sbin", "/usr/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(daemons).map(|folder| folder.join(name)).find(|program| program.is_file())
}
