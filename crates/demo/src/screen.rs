//! One screen, or plain lines where there is no terminal.

use std::{
    io::{IsTerminal as _, Write as _},
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use crate::{
    relays::View,
    tally::{Seen, Tally},
};

/// Shows how the demo goes.
pub(crate) struct Screen {
    started: Instant,
    terminal: bool,
    last: (Instant, u64, u64),
    drawn: usize,
}

impl Screen {
    pub(crate) fn new(started: Instant) -> Self {
        Self { started, terminal: std::io::stdout().is_terminal(), last: (started, 0, 0), drawn: 0 }
    }

    /// How often to show.
    pub(crate) fn interval(&self) -> Duration {
        if self.terminal { Duration::from_millis(250) } else { Duration::from_secs(1) }
    }

    /// Shows the state of now.
    pub(crate) fn show(&mut self, tally: &Tally, relays: &[View]) {
        let committed = tally.committed.load(Relaxed);
        let arrived = tally.kafka.first.load(Relaxed) + tally.rabbitmq.first.load(Relaxed);
        let seconds = self.last.0.elapsed().as_secs_f64().max(0.001);
        let rate = |now: u64, before: u64| precise(now - before) / seconds;
        let rates = (rate(committed, self.last.1), rate(arrived, self.last.2));
        self.last = (Instant::now(), committed, arrived);
        if self.terminal {
            self.draw(tally, relays, rates);
        } else {
            self.line(tally, relays, rates);
        }
    }

    fn line(&self, tally: &Tally, relays: &[View], (orders, arrivals): (f64, f64)) {
        let relays: Vec<String> = relays
            .iter()
            .map(|relay| {
                let state = if relay.alive { format!("in flight {}", relay.in_flight) } else { "KILLED".to_owned() };
                format!("{} {state}, took over {}", relay.name, relay.takeovers)
            })
            .collect();
        println!(
            "{:>4.0}s orders {:>6} ({orders:>5.0}/s) arrived {:>6} + {:>6} ({arrivals:>5.0}/s) | {}",
            self.started.elapsed().as_secs_f64(),
            tally.committed.load(Relaxed),
            tally.kafka.first.load(Relaxed),
            tally.rabbitmq.first.load(Relaxed),
            relays.join(" | ")
        );
    }

    fn draw(&mut self, tally: &Tally, relays: &[View], (orders, arrivals): (f64, f64)) {
        let mut lines = vec![
            format!("  outbox demo                                   {:>5.1} s", self.started.elapsed().as_secs_f64()),
            String::new(),
            format!(
                "  orders     {:>8} committed  {:>6} rolled back   {orders:>6.0}/s",
                tally.committed.load(Relaxed),
                tally.rolled_back.load(Relaxed)
            ),
            consumer("kafka", &tally.kafka),
            consumer("rabbitmq", &tally.rabbitmq),
            format!("  together   {arrivals:>6.0} messages/s"),
            String::new(),
            "  relay      state      claimed   published   in flight   claims taken over".to_owned(),
        ];
        lines.extend(relays.iter().map(relay));
        let up = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
        let text: Vec<String> = lines.iter().map(|line| format!("\x1b[2K{line}\n")).collect();
        let out = up + &text.concat();
        self.drawn = lines.len();
        // A terminal that went away ends the demo elsewhere.
        std::io::stdout().write_all(out.as_bytes()).ok();
    }

    /// The last state stays.
    pub(crate) fn end(&self) {
        if self.terminal {
            println!();
        }
    }
}

fn consumer(name: &str, seen: &Seen) -> String {
    let (first, duplicates) = (seen.first.load(Relaxed), seen.duplicates.load(Relaxed));
    let age = precise(seen.age_micros.load(Relaxed)) / precise(first.max(1)) / 1000.0;
    format!("  {name:<10} {first:>8} applied    {duplicates:>6} absorbed      {age:>6.0} ms mean age")
}

fn relay(relay: &View) -> String {
    let View { name, alive, claimed, published, in_flight, takeovers } = relay;
    if !alive {
        return format!("  {name:<10} KILLED");
    }
    format!("  {name:<10} up      {claimed:>10} {published:>11} {in_flight:>11} {takeovers:>19}")
}

#[expect(clippy::cast_precision_loss, reason = "counts for people to read")]
fn precise(count: u64) -> f64 {
    count as f64
}
