//! A backlog, and a relay that drains it.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use testkit::relay::Relay;

use crate::{
    Broker, Common, ceiling,
    process::peak_mib,
    setup::{Stage, judge, key, message, number},
};

/// How often the relay is asked for its progress.
pub(crate) const EVERY: Duration = Duration::from_millis(20);
/// A relay without progress for this duration will make none.
pub(crate) const STALLED: Duration = Duration::from_secs(60);

/// The figures of a drain; docs/benchmarks.md explains each.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    broker: Broker,
    messages: u64,
    relays: u16,
    lanes: u16,
    bytes: usize,
    keys: u64,
    messages_per_second: f64,
    messages_per_second_middle: f64,
    claim_and_settle_per_second: f64,
    broker_alone_per_second: f64,
    ceiling_ratio: f64,
    relay_cpu_us: f64,
    mysql_cpu_us: f64,
    broker_cpu_us: f64,
    statements_per_message: f64,
    round_trips_per_message: f64,
    peak_memory_mib: f64,
    others_cpu_percent: f64,
    lost: u64,
    duplicates: u64,
    out_of_order: u64,
}

impl Report {
    pub(crate) fn is_good(&self) -> bool {
        self.lost == 0 && self.out_of_order == 0
    }
}

/// The backlog and its relays.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Size {
    /// Messages of the backlog.
    #[arg(long, default_value_t = 100_000)]
    messages: u64,
    /// Concurrent relays.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    relays: u16,
    /// Lanes with equal parts of the backlog.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    lanes: u16,
}

/// Drains a backlog, and measures the ceilings of the parts in the same run.
pub(crate) async fn measure(common: &Common, size: Size) -> Result<Report> {
    let Size { messages, relays, lanes } = size;
    let broker_alone = ceiling::broker(common, messages).await?;
    let mut stage = Stage::new(common).await?;
    let lane = |number| u16::try_from(key(number, common.keys) % u64::from(lanes)).unwrap_or(0);
    stage.fill_with(messages, |number| message(stage.topic.name(), common, number).lane(lane(number))).await?;
    let before = stage.costs(&[]).await?;
    let mut all = (0..relays).map(|_| stage.relay(false)).collect::<Result<Vec<Relay>>>()?;
    let curve = watch(&all, messages).await?;
    stage.database.wait_until_drained(Duration::from_secs(60)).await?;
    let spent = stage.costs(&all.iter().collect::<Vec<_>>()).await?.since(&before);
    let peak = all.iter().map(|relay| peak_mib(relay.pid())).fold(0.0, f64::max);
    for relay in &mut all {
        relay.stop(Duration::from_secs(30)).await?;
    }
    let arrivals = stage.topic.read().await?;
    let numbers = arrivals.iter().map(|arrival| number(arrival.payload.as_deref())).collect::<Result<Vec<_>>>()?;
    let verdict = judge(numbers, messages, common.keys);
    stage.remove().await?;
    let claim_and_settle = database(common, messages).await?;
    let rate = curve.between(0.0, 1.0);
    let per_message = |total: f64| total / precise(messages);
    Ok(Report {
        broker: common.broker,
        messages,
        relays,
        lanes,
        bytes: common.bytes,
        keys: common.keys,
        messages_per_second: rate,
        messages_per_second_middle: curve.between(0.1, 0.9),
        claim_and_settle_per_second: claim_and_settle,
        broker_alone_per_second: broker_alone,
        ceiling_ratio: rate / claim_and_settle.min(broker_alone),
        relay_cpu_us: per_message(spent.relay * 1e6),
        mysql_cpu_us: per_message(spent.mysql * 1e6),
        broker_cpu_us: per_message(spent.broker * 1e6),
        statements_per_message: per_message(spent.statements),
        round_trips_per_message: per_message(spent.round_trips),
        peak_memory_mib: peak,
        others_cpu_percent: spent.others_percent(),
        lost: verdict.lost,
        duplicates: verdict.duplicates,
        out_of_order: verdict.out_of_order,
    })
}

/// Claim and settle alone: the same relay with a sink that confirms at once.
async fn database(common: &Common, messages: u64) -> Result<f64> {
    let stage = Stage::new(common).await?;
    stage.fill(common, messages).await?;
    let mut relay = stage.relay(true)?;
    let curve = watch(std::slice::from_ref(&relay), messages).await?;
    relay.stop(Duration::from_secs(30)).await?;
    stage.remove().await?;
    Ok(curve.between(0.0, 1.0))
}

/// The number of published messages over time.
pub(crate) struct Curve(Vec<(Instant, f64)>);

/// Waits until all messages are published, or none was for a while: the rest is then lost or dead.
pub(crate) async fn watch(relays: &[Relay], messages: u64) -> Result<Curve> {
    let mut curve = Curve(Vec::new());
    let mut moved = Instant::now();
    loop {
        tokio::time::sleep(EVERY).await;
        let before = curve.0.last().map_or(0.0, |(_, published)| *published);
        if moved.elapsed() >= STALLED {
            let logs = relays.iter().map(Relay::log).collect::<Result<String>>()?;
            bail!("{before} of {messages} messages were published, and then none\n{logs}");
        }
        let mut published = 0.0;
        for relay in relays {
            // It may not listen yet.
            published += relay.metrics().await.map_or(0.0, |it| it.sum("outbox_relay_published_messages_total"));
        }
        if published > before {
            moved = Instant::now();
        }
        curve.0.push((Instant::now(), published));
        if published >= precise(messages) {
            return Ok(curve);
        }
    }
}

impl Curve {
    /// The rate between two shares of all messages.
    pub(crate) fn between(&self, from: f64, to: f64) -> f64 {
        let total = self.0.last().map_or(0.0, |(_, count)| *count);
        let reach = |share: f64| self.0.iter().find(|(_, count)| *count > 0.0 && *count >= share * total);
        // The curve starts at the last point before the first publish.
        let first = self.0.iter().rev().find(|(_, count)| *count == 0.0);
        let start = if from == 0.0 { first.or_else(|| reach(0.0)) } else { reach(from) };
        match (start, reach(to)) {
            (Some(start), Some(end)) => (end.1 - start.1) / (end.0 - start.0).as_secs_f64().max(0.001),
            _ => 0.0,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
pub(crate) fn precise(count: u64) -> f64 {
    count as f64
}
