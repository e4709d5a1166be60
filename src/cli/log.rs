use anyhow::Context as _;
use tracing_subscriber::{EnvFilter, filter::Directive};

use crate::config::{Log, LogFormat};

/// Parts of libraries that would log whole messages or statements.
const QUIET: [&str; 3] = ["lapin=error", "sqlx=error", "librdkafka=error"];

/// Logs to standard error from here on.
pub(super) fn start(log: &Log) -> anyhow::Result<()> {
    let mut filter =
        EnvFilter::try_new(&log.level).with_context(|| format!("log.level {:?} is no filter", log.level))?;
    for directive in QUIET {
        filter = filter.add_directive(directive.parse::<Directive>()?);
    }
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match log.format {
        LogFormat::Text => logs.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => logs.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("the log cannot be started: {error}"))
}
