//! The screen: orders flow down through the outbox and the relays to the brokers and their consumers.

use std::time::Duration;

use crate::{
    history::History,
    sight::{ConsumerSight, RelaySight, Sight, published},
    style::{Ink, grouped, millis, spark},
};

/// The width of a full picture. A narrower one has no charts beside the brokers.
const WIDTH: usize = 78;
/// Lines of notes that have room.
const NOTES: usize = 6;
/// Seconds in a little chart.
const CHART: u32 = 14;

/// The lines of a frame. What does not fit into the width stands at the end of a line, and may be cut off.
pub(crate) fn frame(history: &History, notes: &[(Duration, String)], total: Duration, width: usize) -> Vec<String> {
    let Some(now) = history.now() else { return Vec::new() };
    let mut lines = vec![title(now, total, width.min(WIDTH)), String::new(), orders(history, now), Ink::Dim.on("  ▼")];
    lines.extend([pending(history, now), Ink::Dim.on("  │")]);
    lines.extend(now.relays.iter().enumerate().map(|(index, it)| relay(history, index, it)));
    lines.push(Ink::Dim.on("  │"));
    let last = now.consumers.len().saturating_sub(1);
    for (index, it) in now.consumers.iter().enumerate() {
        let branch = if index == last { "  └─▶ " } else { "  ├─▶ " };
        lines.push(consumer(history, index, it, branch, width >= WIDTH));
    }
    lines.extend([String::new(), ages(now), String::new()]);
    let notes: Vec<String> = notes.iter().flat_map(|(at, text)| note(*at, text, width)).collect();
    lines.extend(notes.iter().skip(notes.len().saturating_sub(NOTES)).cloned());
    lines
}

fn title(now: &Sight, total: Duration, width: usize) -> String {
    let time = format!("{:.0} s of {:.0} s", now.at.as_secs_f64(), total.as_secs_f64());
    let space = width.saturating_sub("transactional outbox".len() + time.len());
    format!("{}{:space$}{}", Ink::Bold.on("transactional outbox"), "", Ink::Dim.on(&time))
}

/// A stage of the picture: its name, a number, and a chart of the last seconds.
fn stage(name: &str, number: u64, chart: &[u64]) -> String {
    format!("{name:<15}{:>9} {:<width$}", grouped(number), spark(chart), width = CHART as usize)
}

fn orders(history: &History, now: &Sight) -> String {
    let committed = |sight: &Sight| Some(sight.sales.committed);
    let rate = grouped(history.rate(committed));
    let stage = stage("orders", now.sales.committed, &history.rates(CHART, committed));
    format!("{} {rate}/s, {} rolled back", Ink::Bold.on(&stage), grouped(now.sales.rolled_back))
}

fn pending(history: &History, now: &Sight) -> String {
    let queue = &now.queue;
    let stage = stage("pending", queue.pending, &history.levels(CHART, |sight| sight.queue.pending));
    let age = format!("oldest {}", millis(Duration::from_micros(queue.lags.due)));
    let old = queue.lags.due > 1_000_000;
    let mut line = format!("{} {}", Ink::Bold.on(&stage), if old { Ink::Yellow.on(&age) } else { age });
    for (count, what) in [(queue.delayed, "delayed"), (queue.dead, "dead")] {
        if count > 0 {
            line.extend([", ", &grouped(count), " ", what]);
        }
    }
    line
}

fn relay(history: &History, index: usize, relay: &RelaySight) -> String {
    let mark = if relay.published.is_none() { "✗" } else { "" };
    let name = format!("  ├─▶ {} {mark}", relay.name);
    let claimed = relay.claims.messages;
    let stage = stage(&name, claimed, &history.rates(CHART, |sight| published(sight, index)));
    if relay.published.is_none() {
        let lease = format!("killed: lease {:.1} s", relay.claims.lease_left.as_secs_f64());
        return Ink::Red.on(&format!("{stage} {}", if claimed > 0 { &lease } else { "killed" }));
    }
    let rate = grouped(history.rate(|sight| published(sight, index)));
    Ink::Green.on(&format!("{stage} claimed, {rate}/s published"))
}

fn consumer(history: &History, index: usize, consumer: &ConsumerSight, branch: &str, wide: bool) -> String {
    let delivered = |sight: &Sight| sight.consumers.get(index).map(ConsumerSight::delivered);
    let name = format!("{branch}{}", consumer.role.broker());
    let stage = stage(&name, consumer.delivered(), &history.rates(CHART, delivered));
    let stage = if wide { stage.as_str() } else { stage.trim_end_matches(|c: char| !c.is_ascii_digit()) };
    let effects = grouped(consumer.count.first);
    let twice = grouped(consumer.count.duplicate);
    if wide {
        return format!("{} ─▶ {:<8}{effects:>10} done,{twice:>7} twice", Ink::Bold.on(stage), consumer.role.name());
    }
    format!("{} ▶ {effects} {}, {twice} twice", Ink::Bold.on(stage), consumer.role.name())
}

fn ages(now: &Sight) -> String {
    let age = |it: &ConsumerSight| {
        let (half, most) = it.latency?;
        Some(format!("{} {}, 99 %: {}", it.role.name(), millis(half), millis(most)))
    };
    let ages: Vec<String> = now.consumers.iter().filter_map(age).collect();
    Ink::Dim.on(&format!("order to effect: {}", ages.join("; ")))
}

/// A note, on as many lines as it needs.
fn note(at: Duration, text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![format!("{:>6.1} s ", at.as_secs_f64())];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < width => line.extend([" ", word]),
            _ => lines.push(format!("{:9} {word}", "")),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use testkit::judge::Consumed;

    use super::*;
    use crate::{
        consumers::Role,
        sight::Claims,
        style::{clip, plain},
        tally::SalesCount,
    };

    /// The widest numbers that a demo sees.
    fn history() -> History {
        let claims = Claims { claims: 1_234, messages: 5_678, lease_left: Duration::from_secs(5) };
        let up = RelaySight { name: "relay-1", published: Some(12_345_678), claims };
        let gone = RelaySight { name: "relay-2", published: None, ..up };
        let count = Consumed { first: 1_234_567, duplicate: 9_999, ..Consumed::default() };
        let latency = Some((Duration::from_millis(12_345), Duration::from_micros(1_234)));
        let consumer = |role| ConsumerSight { role, count: count.clone(), latency };
        let sight = Sight {
            at: Duration::from_secs(12),
            sales: SalesCount { committed: 1_234_567, rolled_back: 123_456, failed: 0 },
            relays: vec![up, gone],
            consumers: [Role::Billing, Role::Mailer].map(consumer).into(),
            ..Sight::default()
        };
        let mut history = History::default();
        history.push(sight.clone());
        history.push(Sight { at: Duration::from_secs(13), ..sight });
        history
    }

    fn lines(width: usize) -> Vec<String> {
        let note = (Duration::from_secs(10), "relay-1 is killed".to_owned());
        let frame = frame(&history(), &vec![note; 20], Duration::from_secs(30), width);
        frame.iter().map(|line| plain(line)).collect()
    }

    #[test]
    fn nothing_is_cut_off_on_a_common_terminal() {
        let lines = lines(80);
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{}", lines.join("\n"));
        assert!(lines.len() <= 23, "{} lines", lines.len());
        assert!(lines.last().is_some_and(|line| line.ends_with("relay-1 is killed")), "{}", lines.join("\n"));
    }

    #[test]
    fn a_narrow_terminal_shows_what_each_consumer_has_done() {
        let lines: Vec<String> = lines(40).iter().map(|line| clip(line, 40)).collect();
        for broker in ["Kafka", "RabbitMQ"] {
            let done = |line: &&String| line.contains(broker) && line.contains("▶ 1,234,567");
            assert_eq!(lines.iter().filter(done).count(), 1, "{}", lines.join("\n"));
        }
    }

    #[test]
    fn a_relay_that_is_gone_shows_the_claims_that_it_left() {
        assert!(lines(80).iter().any(|line| line.contains("relay-2") && line.ends_with("killed: lease 5.0 s")));
    }
}
