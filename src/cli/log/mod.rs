//! Logs, on standard error.

mod limit;
mod lines;

use std::sync::OnceLock;

use anyhow::Context as _;
use tracing::{Level, Subscriber};
use tracing_subscriber::{
    EnvFilter, Layer as _,
    filter::filter_fn,
    fmt::{self, MakeWriter},
    layer::SubscriberExt as _,
    reload,
    util::SubscriberInitExt as _,
};

use self::{limit::Limit, lines::Lines};
use crate::config::{Log, LogFormat};

/// Libraries that log whole messages or statements: only their errors are shown.
const QUIET: [&str; 3] = ["lapin", "sqlx", "librdkafka"];
/// Parts whose errors the relay's own log repeats, with the destination: a channel that a missing exchange closes.
const SILENT: [&str; 2] = ["lapin::channel", "lapin::returned_messages"];

/// Sets another level.
pub(super) type SetLevel = Box<dyn Fn(&Log) -> anyhow::Result<()> + Send>;

/// Counts what was left out when the process ends.
struct Rest(Limit);

impl Drop for Rest {
    fn drop(&mut self) {
        self.0.count();
        flush();
    }
}

/// The lines that wait for the reader of standard error.
static LINES: OnceLock<Lines> = OnceLock::new();

/// Waits until the log is written, before the process ends.
pub(super) fn flush() {
    if let Some(lines) = LINES.get() {
        lines.wait();
    }
}

/// Starts the log. Returns a function that changes its level; its end counts the lines that were left out.
pub(super) fn init(log: &Log) -> anyhow::Result<SetLevel> {
    let limit = Limit::default();
    let lines = LINES.get_or_init(|| Lines::to(std::io::stderr()));
    let (subscriber, set_level) = subscriber(log, limit.clone(), || lines.clone())?;
    subscriber.try_init().context("the log was started twice")?;
    limit.count_for_ever();
    let rest = Rest(limit);
    Ok(Box::new(move |log| {
        let Rest(_) = &rest;
        set_level(log)
    }))
}

/// The filters apply to all layers. A filter of a single layer does not reset itself after an unwanted record of the
/// crate `log`. Then it swallows the next line of the thread.
fn subscriber<W>(log: &Log, limit: Limit, writer: W) -> anyhow::Result<(impl Subscriber + Send + Sync, SetLevel)>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(parse(log)?);
    let lines = fmt::layer().with_writer(writer);
    let lines = match log.format {
        LogFormat::Text => lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let quiet = filter_fn(|metadata| is_shown(metadata.target(), *metadata.level()));
    let set_level = move |log: &Log| handle.reload(parse(log)?).context("the log has ended");
    Ok((tracing_subscriber::registry().with(lines).with(limit).with(quiet).with(filter), Box::new(set_level)))
}

fn parse(log: &Log) -> anyhow::Result<EnvFilter> {
    EnvFilter::builder().parse(&log.level).context("`log.level` cannot be used")
}

fn is_shown(target: &str, level: Level) -> bool {
    let library = target.split("::").next().unwrap_or_default();
    !SILENT.contains(&target) && (level == Level::ERROR || !QUIET.contains(&library))
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use super::*;

    #[test]
    fn a_line_after_one_that_is_not_shown_is_shown() {
        let page = tempfile::NamedTempFile::new().unwrap();
        let mut log = crate::config::Config::default().log;
        log.format = LogFormat::Json;
        let (subscriber, _set_level) = subscriber(&log, Limit::default(), Arc::new(page.reopen().unwrap())).unwrap();
        tracing_log::LogTracer::init().unwrap();
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..3 {
                log::warn!(target: "librdkafka", "a payload");
                tracing::error!(number, "a line");
            }
        });
        let page = fs::read_to_string(page.path()).unwrap();
        assert_eq!(page.matches("a line").count(), 3, "{page}");
        assert!(!page.contains("payload"), "{page}");
    }

    #[test]
    fn libraries_show_errors_at_most() {
        for (target, level, expected) in [
            ("lapin::returned_messages", Level::WARN, false),
            ("lapin::channel", Level::ERROR, false),
            ("lapin::io_loop", Level::ERROR, true),
            ("librdkafka", Level::ERROR, true),
            ("sqlx::query", Level::WARN, false),
            ("librdkafka", Level::INFO, false),
            ("outbox_relay::pipeline::publish", Level::DEBUG, true),
        ] {
            assert_eq!(is_shown(target, level), expected, "{target} {level}");
        }
    }
}
