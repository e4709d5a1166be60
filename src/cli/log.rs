//! Logs, on standard error.

use anyhow::Context as _;
use tracing::Level;
use tracing_subscriber::{
    EnvFilter, Layer as _, filter::filter_fn, fmt, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _,
};

use crate::config::{Log, LogFormat};

/// Libraries that log whole messages or statements, or what the relay says itself: only their errors are shown.
const QUIET: [&str; 3] = ["lapin", "sqlx", "librdkafka"];

/// Sets another level.
pub(super) type SetLevel = Box<dyn Fn(&Log) -> anyhow::Result<()> + Send>;

/// Starts the log; returns what changes its level.
pub(super) fn init(log: &Log) -> anyhow::Result<SetLevel> {
    let (filter, handle) = reload::Layer::new(parse(log)?);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match log.format {
        LogFormat::Text => lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let quiet = filter_fn(|metadata| is_shown(metadata.target(), *metadata.level()));
    tracing_subscriber::registry()
        .with(lines.with_filter(quiet))
        .with(filter)
        .try_init()
        .context("the log was started twice")?;
    Ok(Box::new(move |log| handle.reload(parse(log)?).context("the log has ended")))
}

fn parse(log: &Log) -> anyhow::Result<EnvFilter> {
    EnvFilter::builder().parse(&log.level).context("`log.level` cannot be used")
}

fn is_shown(target: &str, level: Level) -> bool {
    let library = target.split("::").next().unwrap_or_default();
    level == Level::ERROR || !QUIET.contains(&library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_logs_payloads_or_statements_shows_errors_only() {
        for (target, level, expected) in [
            ("lapin::returned_messages", Level::WARN, false),
            ("lapin::returned_messages", Level::ERROR, true),
            ("sqlx::query", Level::WARN, false),
            ("librdkafka", Level::INFO, false),
            ("outbox_relay::publish", Level::DEBUG, true),
        ] {
            assert_eq!(is_shown(target, level), expected, "{target} {level}");
        }
    }
}
