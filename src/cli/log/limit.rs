//! A limit for lines that repeat: ten thousand failures of one kind must not hide the others, nor fill a disk.

use std::{collections::HashMap, fmt, sync::Arc, thread, time::Duration};

use parking_lot::Mutex;
use tracing::{
    Event, Level, Subscriber,
    callsite::Identifier,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer};

/// Most lines of one kind within [`EVERY`].
const LINES: u64 = 10;
/// The time after which the lines that were left out are counted.
const EVERY: Duration = Duration::from_secs(60);
/// The target of the counts, which have no limit.
const COUNTS: &str = "outbox_relay::log";

/// Shows the first lines of each kind, but for debugging, and counts the others.
#[derive(Debug, Clone, Default)]
pub(super) struct Limit(Arc<Mutex<HashMap<LineKind, SeenLine>>>);

/// A place in the code, and the fields that tell its lines apart.
type LineKind = (Identifier, String);

/// The fields whose values are few: the operation and the sink, and the target of a line of the crate `log`.
const APART: [&str; 3] = ["operation", "sink", "log.target"];

#[derive(Debug)]
struct SeenLine {
    lines: u64,
    level: Level,
    /// The text of the first line.
    text: String,
}

impl Limit {
    /// Counts what was left out again and again, for as long as the process lives.
    pub(super) fn count_for_ever(&self) {
        let limit = self.clone();
        thread::spawn(move || {
            loop {
                thread::sleep(EVERY);
                limit.count();
            }
        });
    }

    /// Logs how many lines were left out, at their level, and begins anew.
    pub(super) fn count(&self) {
        let seen = std::mem::take(&mut *self.0.lock());
        for SeenLine { lines, level, text } in seen.into_values().filter(|seen| seen.lines > LINES) {
            let lines = lines - LINES;
            match level {
                Level::ERROR => tracing::error!(target: COUNTS, lines, text, "lines like others were left out"),
                Level::WARN => tracing::warn!(target: COUNTS, lines, text, "lines like others were left out"),
                _ => tracing::info!(target: COUNTS, lines, text, "lines like others were left out"),
            }
        }
    }
}

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        let level = *metadata.level();
        if level > Level::INFO || metadata.target() == COUNTS {
            return true;
        }
        let mut line = LogLine::default();
        event.record(&mut line);
        let mut seen = self.0.lock();
        let kind = (metadata.callsite(), line.apart);
        let seen = seen.entry(kind).or_insert_with(|| SeenLine { lines: 0, level, text: line.text });
        seen.lines += 1;
        seen.lines <= LINES
    }
}

/// The text of a line, and the fields that tell it apart.
#[derive(Default)]
struct LogLine {
    text: String,
    apart: String,
}

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.text = format!("{value:?}");
        } else if APART.contains(&field.name()) {
            self.apart.extend([format!("{value:?}").as_str(), " "]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn ten_thousand_equal_failures_are_a_few_lines_with_their_number() {
        let page = tempfile::NamedTempFile::new().unwrap();
        let limit = Limit::default();
        let writer = Arc::new(page.reopen().unwrap());
        let lines = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(writer);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines).with(limit.clone()), || {
            for id in 0..10_000 {
                tracing::warn!(id, "a message is dead");
                tracing::debug!(id, "a detail");
            }
            tracing::warn!("another line");
            limit.count();
            for operation in ["claim", "purge"] {
                (0..9).for_each(|_| tracing::error!(operation, "a call failed"));
            }
            limit.count();
        });
        let page = fs::read_to_string(page.path()).unwrap();
        let count = |text: &str| page.matches(text).count();
        assert_eq!((count("a message is dead"), count("a detail")), (11, 10_000));
        assert_eq!((count("another line"), count("a call failed")), (1, 18));
        assert_eq!((count("\"lines\":9990,\"text\":\"a message is dead\""), count("were left out")), (1, 1), "{page}");
    }
}
