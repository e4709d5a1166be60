//! `relay doctor`.

use std::fmt::Write as _;

use clap::Args;
use outbox_relay::operate::shown::shown;

use super::{
    output::{self, Format},
    run::unusable,
};
use crate::{
    config::Loaded,
    doctor::{Finding, RunIn, Severity, examine},
};

const HELP: &str =
    "Run it with the configuration and the account of the relay. Exit code 3 if there is a problem or a risk. Examples:
  relay doctor --config /etc/outbox-relay/main.toml
  relay doctor --format json";

/// How to print.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct Doctor {
    #[command(flatten)]
    format: Format,
}

impl Doctor {
    /// Prints the findings.
    pub(super) async fn run(self, loaded: &Loaded) -> anyhow::Result<bool> {
        for (name, sink) in &loaded.config.sinks {
            sink.broker().feed(name).map_err(unusable)?;
        }
        let findings = examine(loaded).await;
        if !self.format.json(&findings)? {
            output::text(&text(&findings)?)?;
        }
        let count = |severity| findings.iter().filter(|it| it.severity == severity).count();
        let counts = [Severity::Problem, Severity::Risk, Severity::Note].map(count);
        let [problems, risks, notes] = counts;
        output::note(&format!("Problems: {problems}. Risks: {risks}. Notes: {notes}."))?;
        Ok(problems + risks == 0)
    }
}

fn text(findings: &[Finding]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    for (number, it) in (1..).zip(findings) {
        let severity = match it.severity {
            Severity::Problem => "problem",
            Severity::Risk => "risk",
            Severity::Note => "note",
        };
        writeln!(text, "{number}. {severity}: {}", it.finding)?;
        for sentence in [it.evidence.as_str(), it.matters].into_iter().filter(|it| !it.is_empty()) {
            writeln!(text, "   {}", shown(sentence))?;
        }
        if !it.fix.is_empty() {
            writeln!(text, "   Fix: {}", shown(&it.fix))?;
        }
        let prompt = if it.run_in == Some(RunIn::Shell) { "$ " } else { "mysql> " };
        for line in it.command.iter().flat_map(|command| command.lines()) {
            writeln!(text, "     {prompt}{}", shown(line))?;
        }
    }
    Ok(text)
}
