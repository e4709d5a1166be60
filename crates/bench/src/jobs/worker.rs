//! A `Worker` in this process; its jobs are messages.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use outbox_core::sqlx::{self, MySqlConnection, mysql::MySqlConnectOptions};
use outbox_relay::{
    observe::metrics::Metrics,
    worker::{Delivery, Failure, Handler, Worker},
};
use testkit::{accounts::Account, database::Database};

use super::EFFECT;
use crate::{
    drain::{EVERY, STALLED},
    setup::number,
};

/// The lane in which `Stage::fill` enqueues; no relay runs beside the worker.
const LANE: u16 = 0;

struct Effects;

impl Handler for Effects {
    async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
        let job = number(message.contents.payload.as_deref())?;
        sqlx::query(EFFECT).bind(job).execute(tx).await?;
        Ok(())
    }
}

/// Seconds from the start to the last commit, with this number of concurrent transactions and messages in each.
pub(super) async fn run(database: &Database, jobs: u64, workers: usize, batch: usize) -> Result<f64> {
    let options: MySqlConnectOptions = database.url_as(Account::Owner)?.parse()?;
    let metrics = Metrics::new()?;
    let worker = Worker::new(options, LANE).concurrency(workers).batch(batch).metrics(Arc::clone(&metrics));
    let start = Instant::now();
    let mut took = Duration::ZERO;
    let stop = async {
        all_done(&metrics, jobs).await;
        took = start.elapsed();
    };
    Box::pin(worker.run(Effects, stop)).await?;
    Ok(took.as_secs_f64())
}

/// Waits until all jobs are committed, or none was for a while: the rest is then lost or dead.
async fn all_done(metrics: &Metrics, jobs: u64) {
    let mut before = 0;
    let mut moved = Instant::now();
    while before < jobs && moved.elapsed() < STALLED {
        tokio::time::sleep(EVERY).await;
        let done = metrics.published_messages_total.with_label_values(&["worker"]).get();
        if done > before {
            (before, moved) = (done, Instant::now());
        }
    }
}
