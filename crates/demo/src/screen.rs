//! The screen: one frame of text for what there is to see.

use std::time::Duration;

use crate::{
    history::History,
    sight::{ConsumerSight, RelaySight, Sight},
    style::{bold, dim, green, grouped, millis, red, spark, yellow},
};

const WIDTH: usize = 78;
/// Notes that have room.
const NOTES: usize = 7;
/// Seconds in a relay's little chart.
const CHART: u32 = 24;

/// The lines of a frame, none of them wider than 78 columns.
pub(crate) fn frame(history: &History, notes: &[(Duration, String)], total: Duration) -> Vec<String> {
    let Some(now) = history.now() else { return Vec::new() };
    let mut lines = vec![title(now, total), String::new()];
    lines.extend(shop(history, now));
    lines.push(String::new());
    lines.push(dim("relay      state          claims  in flight   published     now  last seconds"));
    lines.extend(now.relays.iter().enumerate().map(|(index, it)| relay(history, index, it)));
    lines.push(String::new());
    lines.push(dim("consumer   from        delivered     now  duplicates  absorbed     p50     p99"));
    lines.extend(now.consumers.iter().enumerate().map(|(index, it)| consumer(history, index, it)));
    lines.push(String::new());
    let late = notes.iter().skip(notes.len().saturating_sub(NOTES));
    lines.extend(late.map(|(at, text)| note(*at, text)));
    lines
}

fn title(now: &Sight, total: Duration) -> String {
    let time = format!("{:.0} s of {:.0} s", now.at.as_secs_f64(), total.as_secs_f64());
    let space = WIDTH.saturating_sub("transactional outbox".len() + time.len());
    format!("{}{:space$}{}", bold("transactional outbox"), "", dim(&time))
}

fn shop(history: &History, now: &Sight) -> [String; 2] {
    let rate = history.rate(|sight| Some(sight.sales.committed)).unwrap_or_default();
    let sales = &now.sales;
    let orders = format!(
        "orders     {:>9} committed  {:>7}/s  {:>8} rolled back",
        grouped(sales.committed),
        grouped(rate),
        grouped(sales.rolled_back)
    );
    let queue = &now.queue;
    let counts = format!(
        "outbox     {:>9} pending  {:>9} delayed  {:>8} dead",
        grouped(queue.pending),
        grouped(queue.delayed),
        grouped(queue.dead)
    );
    let lag = format!("  oldest {:>7}", millis(Duration::from_micros(queue.lag_micros)));
    [orders, counts + &if queue.lag_micros > 1_000_000 { yellow(&lag) } else { lag }]
}

fn relay(history: &History, index: usize, relay: &RelaySight) -> String {
    let published = move |sight: &Sight| Some(sight.relays.get(index)?.metrics?.published);
    let chart = spark(&history.rates(CHART, published));
    let claims = relay.claims.claims;
    let Some(metrics) = relay.metrics else {
        let lease = relay.claims.lease_left.as_secs_f64();
        let state = if claims > 0 { format!("lease {lease:.1} s") } else { "killed".to_owned() };
        let row = format!("{:<13}{:>8}{:>11}{:>12}{:>8}  {chart}", state, claims, "-", "-", "-");
        return format!("{:<11}{}", relay.name, red(&row));
    };
    let rate = history.rate(published).unwrap_or_default();
    let row = format!("{:>8}{:>11}{:>12}{:>8}", claims, metrics.in_flight, grouped(metrics.published), grouped(rate));
    format!("{:<11}{}{row}  {}", relay.name, green(&format!("{:<13}", "up")), green(&chart))
}

fn consumer(history: &History, index: usize, consumer: &ConsumerSight) -> String {
    let delivered = move |sight: &Sight| Some(sight.consumers.get(index)?.count.deliveries);
    let rate = history.rate(delivered).unwrap_or_default();
    let (half, most) = consumer.latency.map_or(("-".into(), "-".into()), |(half, most)| (millis(half), millis(most)));
    format!(
        "{:<11}{:<10}{:>11}{:>8}{:>12}{:>10}{half:>8}{most:>8}",
        consumer.role.name(),
        consumer.role.broker(),
        grouped(consumer.count.orders),
        grouped(rate),
        grouped(consumer.count.duplicates()),
        grouped(consumer.count.absorbed)
    )
}

fn note(at: Duration, text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WIDTH - 10).collect();
    format!("{}  {text}", dim(&format!("{:>6.1} s", at.as_secs_f64())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        consumers::Role,
        sight::{Claims, RelayMetrics},
        style::plain,
        tally::{IntakeCount, SalesCount},
    };

    /// The widest numbers that a demo sees.
    fn sight() -> Sight {
        let up = RelaySight {
            name: "relay-1".into(),
            metrics: Some(RelayMetrics { in_flight: 123_456, published: 12_345_678 }),
            claims: Claims { claims: 1_234, messages: 9, lease_left: Duration::from_secs(5) },
        };
        let gone = RelaySight { name: "relay-2".into(), metrics: None, ..up.clone() };
        let count =
            IntakeCount { deliveries: 2_345_678, orders: 1_234_567, absorbed: 99_999, ..IntakeCount::default() };
        let latency = Some((Duration::from_millis(12_345), Duration::from_micros(1_234)));
        Sight {
            at: Duration::from_secs(12),
            sales: SalesCount { committed: 1_234_567, rolled_back: 123_456, failed: 0 },
            relays: vec![up, gone],
            consumers: [Role::Billing, Role::Mailer].map(|role| ConsumerSight { role, count, latency }).into(),
            ..Sight::default()
        }
    }

    #[test]
    fn no_line_is_wider_than_a_small_terminal() {
        let mut history = History::default();
        history.push(sight());
        history.push(Sight { at: Duration::from_secs(13), ..sight() });
        let long = (Duration::from_secs(10), "x".repeat(200));
        let frame = frame(&history, &vec![long; 20], Duration::from_secs(30));
        for line in &frame {
            let line = plain(line);
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(frame.len() <= 23, "{} lines", frame.len());
    }

    #[test]
    fn a_relay_that_is_gone_shows_the_claims_that_it_left() {
        let mut history = History::default();
        history.push(sight());
        let frame = frame(&history, &[], Duration::from_secs(30)).join("\n");
        assert!(plain(&frame).contains("relay-2    lease 5.0 s      1234"), "{}", plain(&frame));
    }
}
