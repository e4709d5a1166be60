//! `faults`: breaks everything that can break, prints the table of results, and fails if a message was lost.
#![expect(clippy::print_stdout, reason = "it talks to a person")]

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Parser;
use faults::{
    arena::{Pace, Setup},
    consumer::Program,
    program, report, rows,
    runner::{self, Plan, Ran},
};

/// Breaks everything that can break under a relay. Prints a table, and ends with status 1 if a row fails.
#[derive(Debug, Parser)]
struct Options {
    /// Rows of the table, for example R1. By default all.
    rows: Vec<String>,
    /// Only cases whose name, as in --list, contains this. With its row and its seed, a failed case strikes again.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    case: String,
    /// Repeat the rows until this number of minutes has passed. Each case runs at least once.
    #[arg(long)]
    minutes: Option<u64>,
    /// The seed of the first run; each further run gets the next one. By default a new seed, which is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Run a third of the load. Bounds on times are not part of the verdict.
    #[arg(long)]
    short: bool,
    /// The number of cases that run concurrently.
    #[arg(long, default_value_t = 1)]
    parallel: usize,
    /// Seconds for which the broker is down in B1.
    #[arg(long, default_value_t = 600)]
    outage: u64,
    /// Seconds for which faults strike at random in N1.
    #[arg(long, default_value_t = 1200)]
    mix: u64,
    /// Look at the alerts, with Prometheus and Alertmanager beside: rows that raise them, and a case of each other row.
    #[arg(long)]
    alerts: bool,
    /// The divisor of all times in the rules, for --alerts. At most 60.
    #[arg(long, default_value_t = 10)]
    faster: u32,
    /// List the rows and their cases.
    #[arg(long)]
    list: bool,
    /// The file of the table. A second file beside it ends in `.json`.
    #[arg(long, value_name = "FILE", default_value = "target/faults.md")]
    output: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    program::main(async || run(&Options::parse()).await).await
}

async fn run(options: &Options) -> Result<bool> {
    let rows = runner::choose(if options.alerts { rows::alerts() } else { rows::all() }, &options.rows, &options.case)?;
    if options.list {
        for row in &rows {
            println!("{}  {}: {}", row.id, row.fault, row.shows);
            for case in &row.cases {
                println!("      {}", case.title());
            }
        }
        return Ok(true);
    }
    let seed = options.seed.unwrap_or_else(|| rand::random::<u32>().into());
    println!("seed {seed}");
    let this = std::env::current_exe()?;
    let setup = Setup {
        relay: this.with_file_name("relay"),
        consumer: Program { path: this, arguments: Vec::new(), clock: None },
        outage: Duration::from_secs(options.outage),
        mix: Duration::from_secs(options.mix),
        alerts: options.alerts,
        faster: options.faster.max(1),
        pace: if options.short { Pace::Short } else { Pace::Full },
    };
    let time = options.minutes.map(|minutes| Duration::from_secs(60 * minutes));
    let ran = runner::run(&rows, &Plan { setup, seed, parallel: options.parallel, time }, show).await;
    let table = report::markdown(&rows, &ran, seed);
    program::write(&options.output, &table, &report::json(&rows, &ran, seed))?;
    Ok(!ran.is_empty() && ran.iter().all(|ran| ran.error.is_none()))
}

fn show(ran: &Ran) {
    let verdict = ran.error.as_ref().map_or("ok".to_owned(), |error| format!("FAILED\n{error}"));
    println!("{} {}: {:.0} s, seed {}, {verdict}", ran.row, ran.case, ran.took.as_secs_f64(), ran.seed);
    for (alert, seconds) in &ran.counts.alerts {
        println!("    {alert} after {seconds:.0} s");
    }
    for alert in &ran.counts.fired {
        println!("    {alert} fired");
    }
}
