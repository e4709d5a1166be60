//! The common parts of the programs here.

use std::{fs, path::Path, process::ExitCode};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::consumer;

/// Becomes a consumer if this process was started as one. Otherwise runs, and ends with status 1 if it did not succeed.
#[expect(clippy::print_stderr, reason = "it talks to a person")]
pub async fn main(run: impl AsyncFnOnce() -> Result<bool>) -> ExitCode {
    let ended = async {
        consumer::become_one_if_asked().await?;
        run().await
    };
    match ended.await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a report and writes it to this file. A second file beside it ends in `.json`.
#[expect(clippy::print_stdout, reason = "it talks to a person")]
pub fn write(output: &Path, text: &str, json: &Value) -> Result<()> {
    println!("\n{text}");
    if let Some(folder) = output.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(output, text).with_context(|| format!("cannot write {}", output.display()))?;
    Ok(fs::write(output.with_extension("json"), serde_json::to_string_pretty(json)?)?)
}
