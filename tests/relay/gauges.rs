//! The gauges of the queue: one relay counts for all.

use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::{
    consume::Broker,
    load, on_both_databases,
    relay::Metrics,
    servers::{Flavor, until},
};

use crate::stage::{PATIENCE, Stage, start};

on_both_databases!(one_relay_counts_for_all_until_it_dies,);

const COUNTING: &str = "SELECT COUNT(*) = 1 FROM outbox_instances WHERE counts IS NOT NULL AND instance LIKE";

async fn schedule(stage: &Stage, number: usize) -> Result<()> {
    load::commit(&stage.database, &stage.ledger, &[stage.draft(number)], |message| {
        message.delay(Duration::from_hours(1))
    })
    .await
}

async fn one_relay_counts_for_all_until_it_dies(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    schedule(&stage, 1).await?;
    let mut first = start(&stage.settings.clone().set("relay", "owner", "first"))?;
    stage.database.wait_for(PATIENCE, &format!("{COUNTING} 'first/%'")).await?;
    let mut second = start(&stage.settings.clone().set("relay", "owner", "second"))?;
    let delayed = |number: f64| {
        move |metrics: &Metrics| {
            (metrics.sum_where("outbox_queue_messages", "state=\"delayed\"") - number).abs() < 0.5
                && metrics.sum("outbox_queue_observed_timestamp_seconds") > 1e9
        }
    };
    second.wait_for_metrics(PATIENCE, "the numbers of the other relay", delayed(1.0)).await?;
    schedule(&stage, 2).await?;
    for relay in [&mut first, &mut second] {
        relay.wait_for_metrics(PATIENCE, "two delayed messages", delayed(2.0)).await?;
    }
    // A relay that counts for itself has a time of its own.
    until(PATIENCE, "the numbers of one count on both", || async {
        let (first, second) = (first.metrics().await?, second.metrics().await?);
        let [first, second] = [first, second].map(|metrics| metrics.sum("outbox_queue_observed_timestamp_seconds"));
        ensure!(first.to_bits() == second.to_bits(), "{first} and {second}");
        Ok(())
    })
    .await?;

    first.kill()?;
    schedule(&stage, 3).await?;
    second.wait_for_metrics(PATIENCE, "three delayed messages", delayed(3.0)).await?;
    ensure!(stage.database.number(&format!("{COUNTING} 'second/%'")).await? == 1, "no relay counts");
    second.stop(PATIENCE).await
}
