//! `soak`: two relays under a steady load for hours. Their resources must not grow, and no message may be lost.
#![expect(clippy::print_stdout, reason = "it talks to a person")]

mod report;
mod sample;
mod trend;

use std::{
    path::PathBuf,
    pin::pin,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use faults::{
    arena::{Arena, Pace, Setup},
    consumer::Program,
    program,
    row::Case,
};
use futures_util::FutureExt as _;
use testkit::{consume, servers::Flavor};

use crate::{report::Report, sample::Probe};

const RELAYS: usize = 2;
/// Transactions a second, and in a whole run, unless options change them.
const RATE: f64 = 50.0;
const MOST: f64 = 250_000.0;

/// Runs two relays under the standard load, samples their resources at intervals, fits a line to each series, and
/// judges the delivery. Ends with status 1 if a series grows beyond its bound, or a message was lost, invented or out
/// of order. A Ctrl-C ends the load early, with the report.
///
/// The judge keeps every message in memory: at the end about 5 KB a transaction. The servers' disks need half of that.
#[derive(Debug, Parser)]
struct Options {
    /// Hours; fractions are allowed. By default one, unless --minutes is given.
    #[arg(long)]
    hours: Option<f64>,
    /// Minutes, added to the hours.
    #[arg(long)]
    minutes: Option<f64>,
    /// Transactions a second. By default 50, and less in a long run: 250,000 in total, for which the judge needs 1.2
    /// GB.
    #[arg(long)]
    rate: Option<f64>,
    /// The broker to send to.
    #[arg(long, value_enum, default_value_t = Broker::Kafka)]
    broker: Broker,
    /// Bytes of the largest payload. The full standard load has 65536: four times the memory, and fifteen times the
    /// disk.
    #[arg(long, default_value_t = 1024)]
    largest: usize,
    /// Seconds between samples.
    #[arg(long, default_value_t = 5)]
    every: u64,
    /// Seconds for which sent messages and the inbox are kept, at most a quarter of the run. With 0 they are kept for
    /// ever, and the tables may grow. By default a tenth of the run, but at least half a minute and at most ten.
    #[arg(long)]
    keep: Option<u64>,
    /// The seed of the load.
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// The file of the report. A second file beside it ends in `.json`.
    #[arg(long, value_name = "FILE", default_value = "target/soak.md")]
    output: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Broker {
    Kafka,
    Rabbitmq,
}

/// The settings that follow from the options.
#[derive(Debug, Clone, Copy)]
struct Plan {
    time: Duration,
    rate: f64,
    /// Seconds.
    keep: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    program::main(async || Box::pin(run(&Options::parse())).await).await
}

impl Options {
    fn plan(&self) -> Result<Plan> {
        let hours = self.hours.unwrap_or(if self.minutes.is_some() { 0.0 } else { 1.0 });
        let time = Duration::try_from_secs_f64(hours * 3600.0 + self.minutes.unwrap_or(0.0) * 60.0)?;
        ensure!(time >= Duration::from_secs(120), "a run of less than two minutes shows nothing");
        let keep = self.keep.unwrap_or((time.as_secs() / 10).clamp(30, 600));
        ensure!(
            keep <= time.as_secs() / 4,
            "--keep {keep}: until then the tables grow in any case; keep for less, or run for longer"
        );
        let rate = self.rate.unwrap_or((MOST / time.as_secs_f64()).min(RATE));
        ensure!((0.1..=10_000.0).contains(&rate), "--rate {rate}: give 0.1 to 10000");
        Ok(Plan { time, rate, keep })
    }
}

async fn run(options: &Options) -> Result<bool> {
    let plan = options.plan()?;
    let rate = plan.rate;
    let keep = plan.keep;
    let most = plan.time.as_secs_f64() * plan.rate;
    println!("{:.0} seconds with {rate:.1} transactions each: {most:.0}", plan.time.as_secs_f64());
    let arena = Box::pin(start(options, plan)).await?;
    let mut probe = Probe::new(&arena.database, keep > 0).await?;
    let began = Instant::now();
    let watched = watch(&arena, &mut probe, options, plan).await;
    let hours = began.elapsed().as_secs_f64() / 3600.0;
    let delivery = match watched {
        Ok(()) => Box::pin(arena.finish()).await,
        Err(error) => Err(error),
    };
    let what = format!(
        "{RELAYS} relays, {:?}, {hours:.2} hours, {rate:.1} transactions a second with payloads of up to {} bytes, \
         seed {}, a look every {} s. Sent messages are kept for {keep} s (0: for ever).",
        options.broker, options.largest, options.seed, options.every,
    );
    let report = Report { what: &what, series: &probe.series, delivery: &delivery };
    program::write(&options.output, &report.markdown(), &report.json())?;
    Ok(report.is_good())
}

/// Starts everything, and waits until it works.
async fn start(options: &Options, plan: Plan) -> Result<Arena> {
    let this = std::env::current_exe()?;
    let setup = Setup {
        relay: this.with_file_name("relay"),
        consumer: Program { path: this, arguments: Vec::new(), clock: None },
        pace: Pace::Short,
        outage: Duration::ZERO,
        mix: Duration::ZERO,
        alerts: false,
        faster: 1,
    };
    let broker = match options.broker {
        Broker::Kafka => consume::Broker::Kafka,
        Broker::Rabbitmq => consume::Broker::RabbitMq,
    };
    let case = Case::new("soak", |_| async { Ok(()) }.boxed()).on(Flavor::MySql, broker);
    let mut arena = Arena::new(&case, &setup, options.seed.into()).await?;
    arena.with_tails(true)?;
    (arena.rate, arena.largest) = (plan.rate, options.largest);
    (arena.faults_due, arena.in_flight_due) = (0, false);
    arena.duplicates_are_announced();
    // The lease and the deadline of production.
    let settings = arena.settings.clone().set("relay", "lease", "30s").set("relay", "publish_deadline", "10s");
    let settings =
        settings.set("relay", "settle_deadline", "5s").set("relay", "safety", "5s").set("log", "level", "warn");
    let keep = if plan.keep == 0 { "0".to_owned() } else { format!("{}s", plan.keep) };
    arena.settings = settings.set("retention", "sent", keep.as_str()).set("retention", "inbox", keep.as_str());
    arena.start_relays(RELAYS)?;
    arena.start_load().await?;
    arena.working().await?;
    Ok(arena)
}

/// Samples until the time is over, or until Ctrl-C.
async fn watch(arena: &Arena, probe: &mut Probe, options: &Options, plan: Plan) -> Result<()> {
    let mut interrupt = pin!(tokio::signal::ctrl_c());
    let start = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_secs(options.every.max(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    while start.elapsed() < plan.time {
        tokio::select! {
            _ = ticks.tick() => {}
            interrupted = &mut interrupt => {
                interrupted?;
                break;
            }
        }
        probe.look(arena, start.elapsed().as_secs_f64() / 3600.0).await?;
    }
    Ok(())
}
