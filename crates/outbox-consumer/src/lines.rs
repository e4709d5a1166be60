//! A limit for lines of the log that repeat: as in the log of the relay, ten of a kind a minute.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Most lines of one kind within [`EVERY`].
const LINES: u64 = 10;
/// The time after which the lines that were left out are counted.
const EVERY: Duration = Duration::from_secs(60);

/// The consumers of a process share one log.
static KINDS: Mutex<BTreeMap<String, SeenLines>> = Mutex::new(BTreeMap::new());

#[derive(Debug, Clone, Copy)]
struct SeenLines {
    since: Instant,
    lines: u64,
}

impl SeenLines {
    /// Counts a line. Returns whether it is shown, and the number of lines that were left out before.
    fn line(&mut self, now: Instant) -> (bool, u64) {
        let mut left_out = 0;
        if now.duration_since(self.since) >= EVERY {
            left_out = self.lines.saturating_sub(LINES);
            *self = Self { since: now, lines: 0 };
        }
        self.lines += 1;
        (self.lines <= LINES, left_out)
    }
}

/// Whether to show a line of this kind. The next line after a minute also shows how many were left out.
pub(crate) fn shown(consumer: &str, kind: &str) -> bool {
    let now = Instant::now();
    let (is_shown, left_out) = {
        let mut kinds = KINDS.lock().unwrap_or_else(PoisonError::into_inner);
        kinds.entry(format!("{consumer} {kind}")).or_insert(SeenLines { since: now, lines: 0 }).line(now)
    };
    if left_out > 0 {
        tracing::warn!(consumer, lines = left_out, text = kind, "lines like others were left out");
    }
    is_shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_of_a_kind_are_shown_in_a_minute_and_the_others_are_counted() {
        let now = Instant::now();
        let mut seen = SeenLines { since: now, lines: 0 };
        assert_eq!((0..1000).filter(|_| seen.line(now) == (true, 0)).count(), 10);
        assert_eq!(seen.line(now + EVERY), (true, 990));
        assert_eq!(seen.line(now + EVERY), (true, 0));
    }

    #[test]
    fn kinds_and_consumers_do_not_hide_each_other() {
        assert_eq!((0..20).filter(|_| shown("one", "a kind")).count(), 10);
        assert!(shown("one", "another kind") && shown("another", "a kind"));
    }
}
