//! Where there is no terminal: one line for what there is to see, once a second.

use std::{fmt::Write as _, time::Duration};

use crate::{
    history::History,
    sight::{RelaySight, Sight},
    style::millis,
};

/// One line.
pub(crate) fn line(history: &History) -> String {
    let Some(now) = history.now() else { return String::new() };
    let rate = history.rate(|sight| Some(sight.sales.committed)).unwrap_or_default();
    let mut text = format!(
        "{:>5.1} s  orders {} ({rate}/s), {} rolled back; pending {}, oldest {}",
        now.at.as_secs_f64(),
        now.sales.committed,
        now.sales.rolled_back,
        now.queue.pending,
        millis(Duration::from_micros(now.queue.lag_micros))
    );
    for (index, it) in now.relays.iter().enumerate() {
        text += &relay(history, index, it);
    }
    for it in &now.consumers {
        let (orders, duplicates) = (it.count.orders, it.count.duplicates());
        write!(text, "; {} {orders} delivered, {duplicates} duplicates", it.role.name()).unwrap_or_default();
    }
    text
}

fn relay(history: &History, index: usize, relay: &RelaySight) -> String {
    let (name, claims) = (&relay.name, relay.claims.claims);
    let Some(metrics) = relay.metrics else { return format!("; {name} KILLED, {claims} claims left") };
    let rate = history.rate(|sight: &Sight| Some(sight.relays.get(index)?.metrics?.published)).unwrap_or_default();
    format!("; {name} {claims} claims, {} in flight, {rate}/s", metrics.in_flight)
}

/// A note as a line.
pub(crate) fn note(at: Duration, text: &str) -> String {
    format!("{:>5.1} s  * {text}", at.as_secs_f64())
}
