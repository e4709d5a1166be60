//! The view without a terminal: one line a second.

use std::{fmt::Write as _, time::Duration};

use crate::{
    history::History,
    sight::{Sight, published},
    style::millis,
};

/// One line.
pub(crate) fn line(history: &History) -> String {
    let Some(now) = history.now() else { return String::new() };
    let rate = history.rate(|sight| Some(sight.sales.committed));
    let mut text = format!(
        "{:>5.1} s  orders {} ({rate}/s), {} rolled back; pending {}, oldest {}",
        now.at.as_secs_f64(),
        now.sales.committed,
        now.sales.rolled_back,
        now.queue.pending,
        millis(Duration::from_micros(now.queue.lags.due))
    );
    for (index, it) in now.relays.iter().enumerate() {
        let state = match it.published {
            Some(_) => format!("{}/s", history.rate(|sight: &Sight| published(sight, index))),
            None => "KILLED".to_owned(),
        };
        write!(text, "; {} {state}, {} claimed", it.name, it.claims.messages).unwrap_or_default();
    }
    for it in &now.consumers {
        let effects = it.count.first;
        let duplicates = it.count.duplicate;
        write!(text, "; {} {effects} effects, {duplicates} duplicates", it.role.name()).unwrap_or_default();
    }
    text
}

/// A note as a line.
pub(crate) fn note(at: Duration, text: &str) -> String {
    format!("{:>5.1} s  * {text}", at.as_secs_f64())
}
