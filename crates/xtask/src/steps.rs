//! The steps of `test`: how long each took and how it ended.

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::Result;

/// A finished step. A note names what a green step could not check.
#[derive(Debug)]
pub(crate) struct Step {
    name: &'static str,
    took: Duration,
    outcome: Result<String>,
}

/// Runs `work` as a step. A failure is shown at once, and later steps still run: one run shows every failure.
pub(crate) async fn step(name: &'static str, work: impl Future<Output = Result<String>>) -> Step {
    let start = Instant::now();
    let outcome = work.await;
    let took = start.elapsed();
    match &outcome {
        Ok(note) if note.is_empty() => tracing::info!(step = name, ?took, "passed"),
        Ok(note) => tracing::warn!(step = name, ?took, "passed: {note}"),
        Err(error) => tracing::error!(step = name, ?took, "failed: {error:#}"),
    }
    Step { name, took, outcome }
}

/// A table of all steps.
pub(crate) fn summary(steps: &[Step]) -> String {
    let mut text = String::from("\n");
    for Step { name, took, outcome } in steps {
        let (word, note) = match outcome {
            Ok(note) => ("ok", note.clone()),
            Err(error) => ("FAILED", format!("{error:#}").lines().next().unwrap_or_default().to_owned()),
        };
        let line = format!("{name:<14} {:>7.1} s  {word:<6}  {note}", took.as_secs_f64());
        writeln!(text, "{}", line.trim_end()).unwrap_or_default();
    }
    text
}

pub(crate) fn all_passed(steps: &[Step]) -> bool {
    steps.iter().all(|step| step.outcome.is_ok())
}
