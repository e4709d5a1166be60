//! A steady load: how late messages are.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use serde::Serialize;
use testkit::servers::until;
use tokio::{sync::Mutex, task::JoinSet};

use crate::{
    Broker, Common,
    drain::precise,
    listen::{Arrivals, listen},
    process::{cpu_seconds, peak_mib},
    setup::{Stage, enqueue, judge, message, ready},
};

/// Services that send at the same time; a key always has the same one.
const CONNECTIONS: u64 = 8;
/// Seconds that are sent and not counted.
const WARM_UP: u32 = 3;

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
    insert_p50_ms: f64,
    insert_p50_ms_without_relay: f64,
    insert_ratio: f64,
    relay_cpu_percent: f64,
    mysql_cpu_percent: f64,
    relay_cpu_us: f64,
    mysql_cpu_us: f64,
    round_trips_per_message: f64,
    peak_memory_mib: f64,
    lost: u64,
    duplicates: u64,
    out_of_order: u64,
}

impl Report {
    pub(crate) fn is_good(&self) -> bool {
        self.lost == 0 && self.out_of_order == 0
    }
}

/// When a message was due, when its insert began, and when its commit returned.
#[derive(Clone, Copy)]
struct Sent {
    number: u64,
    due: Instant,
    began: Instant,
    committed: Instant,
}

pub(crate) async fn measure(common: &Common, rate: u32, seconds: u32) -> Result<Report> {
    let without = inserts(&load(&Stage::new(common).await?, common, rate, 8).await?, rate);
    let stage = Stage::new(common).await?;
    let arrivals = Arrivals::default();
    let listener = listen(&stage.topic, Arc::clone(&arrivals)).await?;
    let mut relay = stage.relay(false)?;
    ready(&relay).await?;
    let (before, cpu) = (stage.costs().await?, cpu_seconds(Some(relay.pid())));
    let started = Instant::now();
    let sent = load(&stage, common, rate, seconds + WARM_UP).await?;
    let took = started.elapsed().as_secs_f64();
    let (costs, cpu) = (stage.costs().await?.since(before), cpu_seconds(Some(relay.pid())) - cpu);
    let messages = sent.len() as u64;
    let all = || async {
        let arrived = arrivals.lock().await.len() as u64;
        ensure!(arrived >= messages, "{arrived} of {messages}");
        Ok(())
    };
    until(Duration::from_secs(60), "all messages", all).await?;
    let peak = peak_mib(relay.pid());
    relay.stop(Duration::from_secs(30)).await?;
    listener.abort();
    let arrivals = arrivals.lock().await.clone();
    let verdict = judge(arrivals.iter().map(|(number, _)| *number), messages, common.keys);
    let (late, intended) = latencies(&sent, &arrivals, rate)?;
    let insert = inserts(&sent, rate);
    let (ms, micros) = (|value: u64| precise(value) / 1000.0, |seconds: f64| seconds * 1e6 / precise(messages));
    Ok(Report {
        broker: common.broker,
        rate,
        seconds,
        p50_ms: ms(late.value_at_quantile(0.5)),
        p95_ms: ms(late.value_at_quantile(0.95)),
        p99_ms: ms(late.value_at_quantile(0.99)),
        p999_ms: ms(late.value_at_quantile(0.999)),
        intended_p50_ms: ms(intended.value_at_quantile(0.5)),
        intended_p99_ms: ms(intended.value_at_quantile(0.99)),
        insert_p50_ms: insert,
        insert_p50_ms_without_relay: without,
        insert_ratio: insert / without,
        relay_cpu_percent: cpu * 100.0 / took,
        mysql_cpu_percent: costs.mysql_seconds * 100.0 / took,
        relay_cpu_us: micros(cpu),
        mysql_cpu_us: micros(costs.mysql_seconds),
        round_trips_per_message: costs.round_trips / precise(messages),
        peak_memory_mib: peak,
        lost: verdict.lost,
        duplicates: verdict.duplicates,
        out_of_order: verdict.out_of_order,
    })
}

/// Message `i` is due at start + i / rate, whatever happened before it.
async fn load(stage: &Stage, common: &Common, rate: u32, seconds: u32) -> Result<Vec<Sent>> {
    let start = Instant::now() + Duration::from_millis(200);
    let messages = u64::from(rate) * u64::from(seconds);
    let sent = Arc::new(Mutex::new(Vec::new()));
    let mut connections = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let mut db = stage.database.connect().await?;
        let (common, topic, sent) = (common.clone(), stage.topic.name().to_owned(), Arc::clone(&sent));
        connections.spawn(async move {
            let keys = common.keys.max(1);
            let own = |number: &u64| number.wrapping_mul(7919) % keys % CONNECTIONS == connection;
            for number in (0..messages).filter(own) {
                let due = start + Duration::from_secs_f64(precise(number) / f64::from(rate));
                tokio::time::sleep_until(due.into()).await;
                let began = Instant::now();
                enqueue(&mut db, message(&topic, &common, number)).await?;
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

/// From commit to arrival and from due to arrival, in microseconds, without the warm-up. A consumer may be faster than the
/// return of the commit: that is zero.
fn latencies(sent: &[Sent], arrivals: &[(u64, Instant)], rate: u32) -> Result<(Histogram<u64>, Histogram<u64>)> {
    let mut arrived = std::collections::HashMap::new();
    for (number, at) in arrivals {
        arrived.entry(*number).or_insert(*at);
    }
    let (mut late, mut intended) = (Histogram::new(3)?, Histogram::new(3)?);
    let counted = sent.iter().filter(|sent| sent.number >= u64::from(rate * WARM_UP));
    for sent in counted {
        let Some(at) = arrived.get(&sent.number) else { continue };
        late.record(micros(at.saturating_duration_since(sent.committed)))?;
        intended.record(micros(at.saturating_duration_since(sent.due)))?;
    }
    Ok((late, intended))
}

/// The median of the insert transactions, in milliseconds.
fn inserts(sent: &[Sent], rate: u32) -> f64 {
    let counted = sent.iter().filter(|sent| sent.number >= u64::from(rate * WARM_UP));
    let mut times: Vec<Duration> = counted.map(|sent| sent.committed - sent.began).collect();
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
