//! A limit for lines that repeat: ten thousand failures of one kind must not hide the others, nor fill a disk.

use std::{collections::HashMap, fmt, sync::Arc, thread, time::Duration};

use parking_lot::Mutex;
use tracing::{
    Event, Level, Subscriber,
    callsite::Identifier,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer};

/// Most lines of one place in the code within [`EVERY`].
const LINES: u64 = 10;
/// The time after which the lines that were left out are counted.
const EVERY: Duration = Duration::from_secs(60);
/// The target of the counts, which have no limit.
const COUNTS: &str = "outbox_relay::log";

/// Shows the first lines of each place in the code, but for debugging, and counts the others.
#[derive(Debug, Clone, Default)]
pub(super) struct Limit(Arc<Mutex<HashMap<Identifier, Seen>>>);

#[derive(Debug, Default)]
struct Seen {
    lines: u64,
    /// The text of the first line that was left out.
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

    /// Logs how many lines were left out, and begins anew.
    fn count(&self) {
        let seen = std::mem::take(&mut *self.0.lock());
        for Seen { lines, text } in seen.into_values().filter(|seen| seen.lines > LINES) {
            tracing::warn!(target: COUNTS, lines = lines - LINES, text, "lines like others were left out");
        }
    }
}

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || metadata.target() == COUNTS {
            return true;
        }
        let mut seen = self.0.lock();
        let seen = seen.entry(metadata.callsite()).or_default();
        seen.lines += 1;
        if seen.lines == LINES + 1 {
            event.record(&mut Text(&mut seen.text));
        }
        seen.lines <= LINES
    }
}

/// Takes the text of a line without its fields.
struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            *self.0 = format!("{value:?}");
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
        let (limit, writer) = (Limit::default(), Arc::new(page.reopen().unwrap()));
        let lines = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(writer);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines).with(limit.clone()), || {
            for id in 0..10_000 {
                tracing::warn!(id, "a message is dead");
                tracing::debug!(id, "a detail");
            }
            tracing::warn!("another line");
            limit.count();
            tracing::warn!("a last line");
            limit.count();
        });
        let page = fs::read_to_string(page.path()).unwrap();
        let count = |text: &str| page.matches(text).count();
        assert_eq!((count("a message is dead"), count("a detail")), (11, 10_000));
        assert_eq!((count("another line"), count("a last line")), (1, 1));
        assert_eq!((count("\"lines\":9990,\"text\":\"a message is dead\""), count("were left out")), (1, 1), "{page}");
    }
}
