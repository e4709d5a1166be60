//! A steady load: the latency of messages.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::{sync::Mutex, task::JoinSet};

use crate::{
    Broker, Common, ceiling,
    costs::Spent,
    drain::precise,
    listen::{Arrivals, first_arrivals, listen, wait_for},
    process::peak_mib,
    setup::{Stage, enqueue, judge, key, message, ready, topic_of},
};

/// Services that send concurrently; messages of a key all come from the same one.
const CONNECTIONS: u64 = 8;
/// Seconds of load that do not count.
pub(crate) const WARM_UP: u32 = 3;
/// Seconds of each part that is measured alone.
const ALONE: u32 = 6;

/// The figures of a steady load; docs/benchmarks.md explains each.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    broker: Broker,
    rate: u32,
    seconds: u32,
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    intended_p50_ms: f64,
    intended_p99_ms: f64,
    broker_alone_p50_ms: f64,
    broker_alone_p99_ms: f64,
    insert_p50_ms: f64,
    insert_p50_ms_without_relay: f64,
    insert_ratio: f64,
    relay_cpu_percent: f64,
    mysql_cpu_percent: f64,
    mysql_cpu_percent_without_relay: f64,
    relay_cpu_us: f64,
    mysql_cpu_us: f64,
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

/// The times at which a message was due, its insert began, and its commit returned.
#[derive(Clone, Copy)]
pub(crate) struct Sent {
    number: u64,
    pub(crate) due: Instant,
    began: Instant,
    committed: Instant,
}

/// A load without a relay: the services' own figures.
struct Without {
    insert_p50_ms: f64,
    mysql_cpu_percent: f64,
}

/// A load with a relay.
struct With {
    sent: Vec<Sent>,
    arrivals: Vec<(u64, Instant)>,
    used: Spent,
    peak_memory_mib: f64,
}

/// The load without a relay runs before and after the one with it: a machine drifts.
pub(crate) async fn measure(common: &Common, rate: u32, seconds: u32) -> Result<Report> {
    let alone = ceiling::latency(common, rate, seconds.min(ALONE)).await?;
    let before = without(common, rate).await?;
    let with = with(common, rate, seconds).await?;
    let after = without(common, rate).await?;
    let messages = with.sent.len() as u64;
    let verdict = judge(with.arrivals.iter().map(|(number, _)| *number), messages, common.keys);
    let (late, intended) = latencies(&with.sent, &with.arrivals, rate)?;
    let used = with.used;
    let each = |total: f64| total / precise(messages);
    let (insert, without) =
        (at(&inserts(&with.sent, rate)?, 0.5), f64::midpoint(before.insert_p50_ms, after.insert_p50_ms));
    Ok(Report {
        broker: common.broker,
        rate,
        seconds,
        p50_ms: at(&late, 0.5),
        p95_ms: at(&late, 0.95),
        p99_ms: at(&late, 0.99),
        p999_ms: at(&late, 0.999),
        intended_p50_ms: at(&intended, 0.5),
        intended_p99_ms: at(&intended, 0.99),
        broker_alone_p50_ms: at(&alone, 0.5),
        broker_alone_p99_ms: at(&alone, 0.99),
        insert_p50_ms: insert,
        insert_p50_ms_without_relay: without,
        insert_ratio: insert / without,
        relay_cpu_percent: used.percent(used.relay),
        mysql_cpu_percent: used.percent(used.mysql),
        mysql_cpu_percent_without_relay: f64::midpoint(before.mysql_cpu_percent, after.mysql_cpu_percent),
        relay_cpu_us: each(used.relay * 1e6),
        mysql_cpu_us: each(used.mysql * 1e6),
        statements_per_message: each(used.statements),
        round_trips_per_message: each(used.round_trips),
        peak_memory_mib: with.peak_memory_mib,
        others_cpu_percent: used.others_percent(),
        lost: verdict.lost,
        duplicates: verdict.duplicates,
        out_of_order: verdict.out_of_order,
    })
}

async fn without(common: &Common, rate: u32) -> Result<Without> {
    let stage = Stage::new(common).await?;
    let before = stage.costs(&[]).await?;
    let sent = load(&stage, common, rate, ALONE + WARM_UP).await?;
    let used = stage.costs(&[]).await?.since(&before);
    stage.remove().await?;
    Ok(Without { insert_p50_ms: at(&inserts(&sent, rate)?, 0.5), mysql_cpu_percent: used.percent(used.mysql) })
}

async fn with(common: &Common, rate: u32, seconds: u32) -> Result<With> {
    let stage = Stage::new(common).await?;
    let arrivals = Arrivals::default();
    let listener = listen(&stage.topic, &stage.topics, Arc::clone(&arrivals)).await?;
    let mut relay = stage.relay(false)?;
    ready(&relay).await?;
    let before = stage.costs(&[&relay]).await?;
    let sent = load(&stage, common, rate, seconds + WARM_UP).await?;
    let used = stage.costs(&[&relay]).await?.since(&before);
    wait_for(&arrivals, sent.len() as u64).await;
    let peak_memory_mib = peak_mib(relay.pid());
    relay.stop(Duration::from_secs(30)).await?;
    listener.abort();
    stage.remove().await?;
    let arrivals = arrivals.lock().await.clone();
    Ok(With { sent, arrivals, used, peak_memory_mib })
}

/// Message `number` is due at start + number / rate, whatever happens before.
pub(crate) fn due(start: Instant, number: u64, rate: u32) -> Instant {
    start + Duration::from_secs_f64(precise(number) / f64::from(rate.max(1)))
}

/// Commits messages at their due times, one a transaction.
pub(crate) async fn load(stage: &Stage, common: &Common, rate: u32, seconds: u32) -> Result<Vec<Sent>> {
    let start = Instant::now() + Duration::from_millis(200);
    let messages = u64::from(rate) * u64::from(seconds);
    let sent = Arc::new(Mutex::new(Vec::new()));
    let mut connections = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let mut db = stage.database.connect().await?;
        let common = common.clone();
        let topics = stage.topics.clone();
        let sent = Arc::clone(&sent);
        connections.spawn(async move {
            let own = |number: &u64| key(*number, common.keys) % CONNECTIONS == connection;
            for number in (0..messages).filter(own) {
                let due = due(start, number, rate);
                tokio::time::sleep_until(due.into()).await;
                let began = Instant::now();
                enqueue(&mut db, message(topic_of(&topics, &common, number), &common, number)).await?;
                sent.lock().await.push(Sent { number, due, began, committed: Instant::now() });
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = connections.join_next().await {
        ended??;
    }
    let sent = sent.lock().await.clone();
    Ok(sent)
}

/// Latency from commit to arrival and from due to arrival, in microseconds, without the warm-up. It is zero if a
/// consumer is faster than the return of the commit.
pub(crate) fn latencies(
    sent: &[Sent],
    arrivals: &[(u64, Instant)],
    rate: u32,
) -> Result<(Histogram<u64>, Histogram<u64>)> {
    let arrived = first_arrivals(arrivals);
    let mut late = Histogram::new(3)?;
    let mut intended = Histogram::new(3)?;
    let counted = sent.iter().filter(|sent| sent.number >= u64::from(rate * WARM_UP));
    for sent in counted {
        let Some(at) = arrived.get(&sent.number) else { continue };
        late.record(micros(at.saturating_duration_since(sent.committed)))?;
        intended.record(micros(at.saturating_duration_since(sent.due)))?;
    }
    Ok((late, intended))
}

/// Durations of the insert transactions in microseconds, without the warm-up.
pub(crate) fn inserts(sent: &[Sent], rate: u32) -> Result<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    for sent in sent.iter().filter(|sent| sent.number >= u64::from(rate * WARM_UP)) {
        times.record(micros(sent.committed - sent.began))?;
    }
    Ok(times)
}

/// A quantile in milliseconds.
pub(crate) fn at(micros: &Histogram<u64>, share: f64) -> f64 {
    precise(micros.value_at_quantile(share)) / 1000.0
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
