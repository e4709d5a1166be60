//! A relay with nothing to do.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::{
    Common,
    process::cpu_seconds,
    setup::{Stage, ready},
};

/// What an idle relay costs; docs/benchmarks.md explains each figure.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    seconds: u64,
    mysql_cpu_percent_without_relay: f64,
    mysql_cpu_percent: f64,
    relay_cpu_percent: f64,
    round_trips_per_second: f64,
}

pub(crate) async fn measure(common: &Common, seconds: u64) -> Result<Report> {
    let stage = Stage::new(common).await?;
    let without = stage.costs().await?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let without = stage.costs().await?.since(without);
    let mut relay = stage.relay(false)?;
    ready(&relay).await?;
    // Polling slows down over the first seconds without a message.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (before, cpu) = (stage.costs().await?, cpu_seconds(Some(relay.pid())));
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let (costs, cpu) = (stage.costs().await?.since(before), cpu_seconds(Some(relay.pid())) - cpu);
    relay.stop(Duration::from_secs(30)).await?;
    let percent = |cpu: f64| cpu * 100.0 / crate::drain::precise(seconds);
    Ok(Report {
        seconds,
        mysql_cpu_percent_without_relay: percent(without.mysql_seconds),
        mysql_cpu_percent: percent(costs.mysql_seconds),
        relay_cpu_percent: percent(cpu),
        round_trips_per_second: costs.round_trips / crate::drain::precise(seconds),
    })
}
