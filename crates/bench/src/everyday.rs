//! Steady loads at everyday rates: the load that a relay adds to the database, the latency, and the cost of each
//! further relay.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use serde_json::{Map, Value, json};
use testkit::relay::Relay;

use crate::{
    Common, idle,
    latency::{WARM_UP, at, inserts, latencies, load},
    listen::{Arrivals, listen, wait_for},
    setup::{Stage, judge, ready},
};

/// Messages per second.
const RATES: [u32; 2] = [100, 1000];
/// The kernel counts hundredths of a second: over a shorter time the idle cost is a guess.
const IDLE_SECONDS: u64 = 30;
/// The largest number of concurrent relays.
const RELAYS: usize = 3;
/// Goal for MySQL's additional CPU with one relay, at each rate and when idle, in percent of a core.
const MOST_ADDED: f64 = 8.0;
const MOST_ADDED_IDLE: f64 = 0.25;
/// Goal for each further relay, as a share of the first relay's cost.
const FURTHER: f64 = 0.1;
/// Goal for the slowdown of the services' transactions.
const MOST_INSERT_RATIO: f64 = 1.1;

/// Each rate without a relay, with one, and so on; then the idle costs.
pub(crate) async fn measure(common: &Common, seconds: u32) -> Result<(Value, bool)> {
    let mut report = Map::new();
    let mut good = true;
    for rate in RATES {
        // Runs without a relay come before and after: a machine drifts.
        let before = run(common, rate, seconds, 0).await?;
        let mut runs = Vec::new();
        for relays in 1..=RELAYS {
            runs.push((relays, run(common, rate, seconds, relays).await?));
        }
        let after = run(common, rate, seconds, 0).await?;
        let mysql = f64::midpoint(before.mysql_cpu_percent, after.mysql_cpu_percent);
        let insert = f64::midpoint(before.insert_p50_ms, after.insert_p50_ms);
        report.insert(format!("at_{rate}_x0_insert_p50_ms"), json!(insert));
        report.insert(format!("at_{rate}_x0_mysql_cpu_percent"), json!(mysql));
        for (relays, run) in runs {
            let mut note = |name: &str, value: Value| report.insert(format!("at_{rate}_x{relays}_{name}"), value);
            note("mysql_added_percent", json!(run.mysql_cpu_percent - mysql));
            note("insert_ratio", json!(run.insert_p50_ms / insert));
            note("p50_ms", json!(run.p50_ms));
            note("p99_ms", json!(run.p99_ms));
            note("relay_cpu_percent", json!(run.relay_cpu_percent));
            note("round_trips_per_second", json!(run.round_trips_per_second));
            note("others_cpu_percent", json!(run.others_cpu_percent));
            note("lost", json!(run.lost));
            note("out_of_order", json!(run.out_of_order));
            good &= run.lost == 0 && run.out_of_order == 0;
        }
    }
    let idle = serde_json::to_value(idle::measure(common, IDLE_SECONDS).await?)?;
    for (name, value) in idle.as_object().into_iter().flatten() {
        report.insert(format!("idle_{name}"), value.clone());
    }
    Ok((Value::Object(report), good))
}

/// The goals, each with whether the figures reach it.
pub(crate) fn goals(report: &Map<String, Value>) -> Map<String, Value> {
    let figure = |name: String| report.get(&name).and_then(Value::as_f64).unwrap_or(f64::INFINITY);
    let mut goals = Map::new();
    for rate in RATES {
        let added = |relays| figure(format!("at_{rate}_x{relays}_mysql_added_percent"));
        let insert = figure(format!("at_{rate}_x1_insert_ratio"));
        let further = (2..=RELAYS).all(|relays| added(relays) - added(relays - 1) <= FURTHER * added(1));
        goals.insert(format!("at_{rate}_one_relay_adds_at_most_{MOST_ADDED}_percent"), json!(added(1) <= MOST_ADDED));
        goals.insert(format!("at_{rate}_each_further_relay_adds_at_most_a_tenth_of_that"), json!(further));
        goals.insert(
            format!("at_{rate}_inserts_take_at_most_{MOST_INSERT_RATIO}_times"),
            json!(insert <= MOST_INSERT_RATIO),
        );
    }
    let idle = figure("idle_mysql_cpu_percent".into()) - figure("idle_mysql_cpu_percent_without_relay".into());
    goals.insert(format!("idle_one_relay_adds_at_most_{MOST_ADDED_IDLE}_percent"), json!(idle <= MOST_ADDED_IDLE));
    goals
}

struct Run {
    insert_p50_ms: f64,
    mysql_cpu_percent: f64,
    relay_cpu_percent: f64,
    round_trips_per_second: f64,
    others_cpu_percent: f64,
    p50_ms: f64,
    p99_ms: f64,
    lost: u64,
    out_of_order: u64,
}

async fn run(common: &Common, rate: u32, seconds: u32, relays: usize) -> Result<Run> {
    let stage = Stage::new(common).await?;
    let arrivals = Arrivals::default();
    let listener = listen(&stage.topic, &stage.topics, Arc::clone(&arrivals)).await?;
    let mut relays = (0..relays).map(|_| stage.relay(false)).collect::<Result<Vec<Relay>>>()?;
    for relay in &relays {
        ready(relay).await?;
    }
    let all: Vec<&Relay> = relays.iter().collect();
    let before = stage.costs(&all).await?;
    let sent = load(&stage, common, rate, seconds + WARM_UP).await?;
    let used = stage.costs(&all).await?.since(&before);
    if !relays.is_empty() {
        wait_for(&arrivals, sent.len() as u64).await;
    }
    for relay in &mut relays {
        relay.stop(Duration::from_secs(30)).await?;
    }
    listener.abort();
    stage.remove().await?;
    let arrivals = arrivals.lock().await.clone();
    let (late, _) = latencies(&sent, &arrivals, rate)?;
    let verdict = judge(arrivals.iter().map(|(number, _)| *number), sent.len() as u64, common.keys);
    Ok(Run {
        insert_p50_ms: at(&inserts(&sent, rate)?, 0.5),
        mysql_cpu_percent: used.percent(used.mysql),
        relay_cpu_percent: used.percent(used.relay),
        round_trips_per_second: used.round_trips / used.seconds,
        others_cpu_percent: used.others_percent(),
        p50_ms: at(&late, 0.5),
        p99_ms: at(&late, 0.99),
        lost: verdict.lost,
        out_of_order: verdict.out_of_order,
    })
}
