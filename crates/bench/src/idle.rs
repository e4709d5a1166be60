//! A relay with nothing to do.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::{
    Common,
    setup::{Stage, ready},
};

/// The costs of an idle relay; docs/benchmarks.md explains each figure.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    seconds: u64,
    mysql_cpu_percent_without_relay: f64,
    mysql_cpu_percent: f64,
    relay_cpu_percent: f64,
    round_trips_per_second: f64,
    others_cpu_percent: f64,
}

/// A relay polls less often after ten seconds without a message.
pub(crate) const UNTIL_QUIET: Duration = Duration::from_secs(12);

pub(crate) async fn measure(common: &Common, seconds: u64) -> Result<Report> {
    let stage = Stage::new(common).await?;
    let before = stage.costs(&[]).await?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let without = stage.costs(&[]).await?.since(&before);
    let mut relay = stage.relay(false)?;
    ready(&relay).await?;
    tokio::time::sleep(UNTIL_QUIET).await;
    let before = stage.costs(&[&relay]).await?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let spent = stage.costs(&[&relay]).await?.since(&before);
    relay.stop(Duration::from_secs(30)).await?;
    stage.remove().await?;
    Ok(Report {
        seconds,
        mysql_cpu_percent_without_relay: without.percent(without.mysql),
        mysql_cpu_percent: spent.percent(spent.mysql),
        relay_cpu_percent: spent.percent(spent.relay),
        round_trips_per_second: spent.round_trips / spent.seconds,
        others_cpu_percent: spent.others_percent(),
    })
}
