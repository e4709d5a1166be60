//! Measures the relay on real servers: drain rate, latency under a steady load, idle costs, the costs of millions of
//! rows, and workers against other queues. A command with a report: it judges losses, duplicates and order, never
//! times.
#![expect(clippy::print_stdout, reason = "the report is its output")]

mod ceiling;
mod costs;
mod drain;
mod enqueue;
mod everyday;
mod fill;
mod idle;
mod jobs;
mod latency;
mod listen;
mod neighbours;
mod operate;
mod process;
mod setup;
mod summary;
mod volume;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::{Map, Value};
use testkit::consume;

/// Measures the relay.
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Clone, Args)]
struct Common {
    /// The broker to send to.
    #[arg(long, global = true, value_enum, default_value_t = Broker::Kafka)]
    broker: Broker,
    /// Bytes of a payload.
    #[arg(long, global = true, default_value_t = 1024)]
    bytes: usize,
    /// The number of different keys.
    #[arg(long, global = true, default_value_t = 10_000)]
    keys: u64,
    /// The number of runs; the report has the medians, and each run.
    #[arg(long, global = true, default_value_t = 1)]
    runs: usize,
    /// The format of the report.
    #[arg(long, global = true, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// The relay's program. By default the one beside this program.
    #[arg(long, global = true, value_name = "FILE")]
    relay: Option<PathBuf>,
    /// The relay may not read the binary log: it makes no tails.
    #[arg(long, global = true)]
    no_tail: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Broker {
    Kafka,
    Rabbitmq,
}

impl From<Broker> for consume::Broker {
    fn from(broker: Broker) -> Self {
        match broker {
            Broker::Kafka => Self::Kafka,
            Broker::Rabbitmq => Self::RabbitMq,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

#[derive(Debug, Clone, Subcommand)]
enum What {
    /// Fill a backlog, then start a relay that drains it, or several.
    Drain(drain::Size),
    /// A steady load of one message a transaction. Each is sent at its intended time, whatever happened before.
    Latency {
        /// Messages per second.
        #[arg(long, default_value_t = 1000)]
        rate: u32,
        /// Seconds that count, after a warm-up of three.
        #[arg(long, default_value_t = 20)]
        seconds: u32,
    },
    /// The time of an enqueue beside bare INSERTs, and the costs of sequenced keys for a service that locks its row
    /// after the enqueue. Needs no relay.
    Enqueue {
        /// Concurrent connections that write.
        #[arg(long, default_value_t = 8)]
        producers: u64,
        /// Transactions of all connections together.
        #[arg(long, default_value_t = 4000)]
        transactions: u64,
    },
    /// The load that relays add to the database: none, one, two and three relays at 100 and 1,000 messages a second,
    /// then idle. The last line is one JSON object, with goals and whether they are reached. Takes about four minutes.
    Everyday {
        /// Seconds of each load that count, after a warm-up of three.
        #[arg(long, default_value_t = 10)]
        seconds: u32,
    },
    /// The costs of a relay with nothing to do.
    Idle {
        /// Seconds to measure.
        #[arg(long, default_value_t = 15)]
        seconds: u64,
    },
    /// Workers against the classic queues of jobs in MySQL, with one and with four of them. Takes some minutes; --jobs
    /// makes it shorter.
    Jobs {
        /// Jobs of each queue.
        #[arg(long, default_value_t = 20_000)]
        jobs: u64,
        /// Measure only this way, such as `worker`; may be repeated.
        #[arg(long = "way", value_name = "WAY")]
        ways: Vec<String>,
    },
    /// A steady load to ten destinations beside a sick one, a hot key (RabbitMQ), unroutable messages, and many lanes.
    /// Measures the rate and latency that the ten keep. The last line is one JSON object, with goals and whether they
    /// are reached. Takes about five minutes.
    Neighbours {
        #[command(flatten)]
        size: neighbours::Size,
        /// Measure only the load alone and beside this neighbour; may be repeated.
        #[arg(long, value_enum, value_name = "NEIGHBOUR")]
        only: Vec<neighbours::Neighbour>,
    },
    /// An operator's reads on tables with millions of rows, and a drain beside them. The last line is one JSON object,
    /// with goals and whether they are reached. Takes about six minutes and five gigabytes; --sent and --pending make
    /// it smaller.
    Operate(operate::Size),
    /// Tables with millions of rows: drains, claims, an open snapshot, and the services' inserts beside the purge.
    /// Sends nothing to a broker. Takes about ten minutes and five gigabytes; --sent and --pending make it smaller.
    Volume(volume::Size),
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: messages were lost, out of order or worked on twice: the figures mean nothing");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures this number of times, up to the first failed run, and prints the report.
async fn run(options: &Options) -> Result<bool> {
    let mut runs = Vec::new();
    let mut all_good = true;
    while all_good && runs.len() < options.common.runs {
        let (report, good) = measure(options).await?;
        runs.push(report);
        all_good = good;
    }
    let mut report = summary::object(&runs);
    let goals = match options.what {
        What::Everyday { .. } => Some(everyday::goals(&report)),
        What::Neighbours { .. } => Some(neighbours::goals(&report)),
        What::Operate(_) => Some(operate::goals(&report)),
        _ => None,
    };
    let has_goals = goals.is_some();
    report.extend(goals.map(|goals| ("goals".to_owned(), Value::Object(goals))));
    if options.common.format == Format::Table {
        print!("{}", summary::table(&runs));
    }
    if has_goals || options.common.format == Format::Json {
        println!("{}", Value::Object(report));
    }
    Ok(all_good)
}

async fn measure(options: &Options) -> Result<(Map<String, Value>, bool)> {
    let common = &options.common;
    let (report, good) = match options.what {
        What::Drain(size) => {
            let report = drain::measure(common, size).await?;
            (serde_json::to_value(&report)?, report.is_good())
        }
        What::Enqueue { producers, transactions } => {
            let report = enqueue::measure(common, producers.max(1), transactions).await?;
            (serde_json::to_value(&report)?, report.is_good())
        }
        What::Jobs { jobs, ref ways } => {
            let report = jobs::measure(common, jobs.max(1), ways).await?;
            (serde_json::to_value(&report)?, report.is_good())
        }
        What::Neighbours { size, ref only } => neighbours::measure(common, size, only).await?,
        What::Operate(size) => operate::measure(common, size).await?,
        What::Everyday { seconds } => everyday::measure(common, seconds).await?,
        What::Latency { rate, seconds } => {
            let report = latency::measure(common, rate, seconds).await?;
            (serde_json::to_value(&report)?, report.is_good())
        }
        What::Volume(size) => (serde_json::to_value(volume::measure(common, size).await?)?, true),
        What::Idle { seconds } => (serde_json::to_value(idle::measure(common, seconds).await?)?, true),
    };
    Ok((serde_json::from_value(report)?, good))
}
