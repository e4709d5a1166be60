//! Tables with millions of rows: their costs for claims, drains and the services' inserts. The sink confirms at once,
//! so that no broker hides them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use outbox_core::sqlx::{self, Connection as _};
use serde::Serialize;
use serde_json::{Map, Value, json};
use testkit::servers::PATIENCE;

use crate::{
    Common,
    drain::watch,
    latency::{WARM_UP, at, inserts, load},
    setup::{Stage, ready},
};

/// The number of rounds, each of which measures everything: a machine drifts.
const ROUNDS: u32 = 2;

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Size {
    /// Sent messages that are in the tables from the start.
    #[arg(long, default_value_t = 5_000_000)]
    sent: u64,
    /// Messages of each backlog.
    #[arg(long, default_value_t = 1_000_000)]
    pending: u64,
    /// Bytes of a payload here, in place of --bytes.
    #[arg(long, default_value_t = 200)]
    payload: usize,
    /// Seconds for which the snapshot is held open at least. Until then backlogs drain one after the other; the last
    /// one counts.
    #[arg(long, default_value_t = 0)]
    hold: u64,
    /// Messages per second while the purge runs.
    #[arg(long, default_value_t = 500)]
    rate: u32,
    /// Seconds of that load, after a warm-up of three.
    #[arg(long, default_value_t = 15)]
    seconds: u32,
}

/// The figures of large tables; docs/benchmarks.md explains each.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    sent: u64,
    pending: u64,
    bytes: usize,
    keys: u64,
    hold: u64,
    rate: u32,
    seconds: u32,
    full_ratio: f64,
    snapshot_ratio: f64,
    #[serde(flatten)]
    means: Means,
}

/// The mean of each figure over the rounds.
#[derive(Debug, Default, Serialize)]
struct Means(Map<String, Value>);

impl Means {
    fn get(&self, name: &str) -> f64 {
        self.0.get(name).and_then(Value::as_f64).unwrap_or(0.0)
    }

    /// Adds the value of one round.
    fn add(&mut self, name: String, value: f64) {
        let mean = self.get(&name) + value / f64::from(ROUNDS);
        self.0.insert(name, json!(mean));
    }
}

/// Tables, and the number of messages sent from them so far.
struct Ground {
    stage: Stage,
    common: Common,
    sent: u64,
}

pub(crate) async fn measure(common: &Common, size: Size) -> Result<Report> {
    let common = Common { bytes: size.payload, ..common.clone() };
    let mut means = Means::default();
    let mut full = Ground { stage: Stage::new(&common).await?, common: common.clone(), sent: size.sent };
    full.stage.fill_sent(&common, size.sent).await?;
    for _ in 0..ROUNDS {
        let mut empty = Ground { stage: Stage::new(&common).await?, common: common.clone(), sent: 0 };
        empty.drain("empty", size.pending, &mut means).await?;
        empty.stage.remove().await?;
        full.tidy().await;
        full.drain("full", size.pending, &mut means).await?;
        full.drain_under_a_snapshot(size, &mut means).await?;
    }
    for _ in 0..ROUNDS {
        full.insert(size, false, &mut means).await?;
        full.insert(size, true, &mut means).await?;
    }
    full.stage.remove().await?;
    let rate = |kind: &str| means.get(&format!("{kind}_messages_per_second"));
    Ok(Report {
        sent: size.sent,
        pending: size.pending,
        hold: size.hold,
        bytes: common.bytes,
        keys: common.keys,
        rate: size.rate,
        seconds: size.seconds,
        full_ratio: rate("full") / rate("empty"),
        snapshot_ratio: rate("snapshot") / rate("full"),
        means,
    })
}

impl Ground {
    /// Drains while an open transaction reads the old rows: the server can remove no deleted row.
    async fn drain_under_a_snapshot(&mut self, size: Size, means: &mut Means) -> Result<()> {
        self.tidy().await;
        let mut reader = self.stage.database.connect().await?;
        sqlx::raw_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT").execute(&mut reader).await?;
        let opened = Instant::now();
        while opened.elapsed() < Duration::from_secs(size.hold) {
            self.drain("before", size.pending, &mut Means::default()).await?;
        }
        self.drain("snapshot", size.pending, means).await?;
        Ok(reader.close().await?)
    }

    /// Fills a backlog and drains it.
    async fn drain(&mut self, kind: &str, pending: u64, means: &mut Means) -> Result<()> {
        self.stage.fill_pending(&self.common, pending).await?;
        let before = self.stage.costs(&[]).await?;
        let mut relay = self.stage.relay(true)?;
        let curve = watch(std::slice::from_ref(&relay), pending).await?;
        let metrics = relay.metrics().await?;
        let others = self.stage.costs(&[&relay]).await?.since(&before).others_percent();
        self.stage.database.wait_until_drained(PATIENCE).await?;
        relay.stop(PATIENCE).await?;
        self.count(pending).await?;
        means.add(format!("{kind}_messages_per_second"), curve.between(0.0, 1.0));
        for operation in ["claim", "look"] {
            for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
                let labels = format!("operation=\"{operation}\"");
                let seconds = metrics.quantile("outbox_relay_db_call_duration_seconds", &labels, share);
                means.add(format!("{kind}_{operation}_{name}_ms"), seconds * 1000.0);
            }
        }
        means.add(format!("{kind}_others_cpu_percent"), others);
        Ok(())
    }

    /// Waits until the server has removed the rows deleted before, as far as it does: it would pay for them later.
    async fn tidy(&self) {
        let sql = "SELECT `COUNT` < 100 FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'";
        self.stage.database.wait_for(PATIENCE, sql).await.ok();
    }

    /// Checks that no message is lost or sent twice: there is a receipt for each message.
    async fn count(&mut self, pending: u64) -> Result<()> {
        self.sent += pending;
        let sql = "SELECT CAST(COALESCE(SUM(JSON_LENGTH(message_ids)), 0) AS SIGNED) FROM outbox_sent";
        let receipts = u64::try_from(self.stage.database.number(sql).await?)?;
        ensure!(receipts == self.sent, "{} messages were to be sent, {receipts} are", self.sent);
        Ok(())
    }

    /// A steady load while the filled-in sent messages are kept, or purged.
    async fn insert(&self, size: Size, purge: bool, means: &mut Means) -> Result<()> {
        self.tidy().await;
        let (name, keep) = if purge { ("insert_with_purge", "1h") } else { ("insert", "7d") };
        let mut relay = self.stage.start(&self.stage.settings(true)?.set("retention", "sent", keep))?;
        ready(&relay).await?;
        let start = Instant::now();
        let sent = load(&self.stage, &self.common, size.rate, size.seconds + WARM_UP).await?;
        let took = start.elapsed().as_secs_f64();
        let metrics = relay.metrics().await?;
        let purged = metrics.sum_where("outbox_relay_purged_messages_total", "outbox_messages");
        self.stage.database.wait_until_drained(PATIENCE).await?;
        relay.stop(PATIENCE).await?;
        let times = inserts(&sent, size.rate)?;
        for (quantile, share) in [("p50", 0.5), ("p99", 0.99)] {
            means.add(format!("{name}_{quantile}_ms"), at(&times, share));
        }
        if purge {
            means.add("purged_per_second".to_owned(), purged / took);
        }
        Ok(())
    }
}
