use std::{
    path::{Path, PathBuf},
    process::Output,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

/// The relay's command line, with an account of the database.
#[derive(Debug, Clone)]
pub struct Client {
    program: PathBuf,
    /// The address of the database, with the account.
    pub url: String,
    /// Flags that every command gets.
    pub flags: Vec<String>,
}

impl Client {
    /// Commands of this program.
    #[must_use]
    pub fn new(program: impl AsRef<Path>, url: impl Into<String>) -> Self {
        Self { program: program.as_ref().to_owned(), url: url.into(), flags: Vec::new() }
    }

    /// Runs a command as the user `alice`. `words` are separated by spaces; further arguments may contain some.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn run(&self, words: &str, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.program);
        command.args(words.split(' ')).args(arguments).args(&self.flags).kill_on_drop(true);
        Ok(command.env("RELAY__DATABASE__URL", &self.url).env("USER", "alice").output().await?)
    }

    /// The output of a command that must succeed.
    ///
    /// # Errors
    /// When it does not.
    pub async fn done(&self, words: &str, arguments: &[&str]) -> Result<String> {
        let output = self.run(words, arguments).await?;
        ensure!(output.status.success(), "{words} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The JSON of a command that must succeed.
    ///
    /// # Errors
    /// When it does not.
    pub async fn json(&self, words: &str, arguments: &[&str]) -> Result<Value> {
        let text = self.done(words, &[arguments, &["--format", "json"]].concat()).await?;
        serde_json::from_str(&text).context(text)
    }
}
