//! Measures the relay on real servers: how fast it drains a backlog, how late messages are under a steady load, what it costs when
//! idle. A command with a report: it judges losses, duplicates and order, never times.
#![expect(clippy::print_stdout, reason = "the report is its output")]

mod ceiling;
mod drain;
mod idle;
mod latency;
mod listen;
mod process;
mod setup;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
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
    /// To which broker.
    #[arg(long, global = true, value_enum, default_value_t = Broker::Kafka)]
    broker: Broker,
    /// Bytes of a payload.
    #[arg(long, global = true, default_value_t = 1024)]
    bytes: usize,
    /// Different keys.
    #[arg(long, global = true, default_value_t = 10_000)]
    keys: u64,
    /// How often to measure; each run is a report of its own.
    #[arg(long, global = true, default_value_t = 1)]
    runs: u32,
    /// The form of the report.
    #[arg(long, global = true, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// The relay's program; by default the one beside this program.
    #[arg(long, global = true, value_name = "FILE")]
    relay: Option<PathBuf>,
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
    /// Fill a backlog, then start a relay.
    Drain {
        /// Messages of the backlog.
        #[arg(long, default_value_t = 100_000)]
        messages: u64,
    },
    /// A steady load, one message a transaction, sent at its intended times whatever happened before.
    Latency {
        /// Messages per second.
        #[arg(long, default_value_t = 1000)]
        rate: u32,
        /// Seconds that count, after a warm-up of three.
        #[arg(long, default_value_t = 20)]
        seconds: u32,
    },
    /// A relay with nothing to do.
    Idle {
        /// How long to look.
        #[arg(long, default_value_t = 15)]
        seconds: u64,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    for _ in 0..options.common.runs {
        match measure(&options).await {
            Ok((report, good)) => {
                print(&report, options.common.format);
                if !good {
                    eprintln!("error: messages were lost, or out of order: the figures mean nothing");
                    return ExitCode::FAILURE;
                }
            }
            Err(error) => {
                eprintln!("error: {error:#}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

async fn measure(options: &Options) -> Result<(serde_json::Value, bool)> {
    let common = &options.common;
    Ok(match options.what {
        What::Drain { messages } => {
            let report = drain::measure(common, messages).await?;
            (serde_json::to_value(&report)?, report.is_good())
        }
        What::Latency { rate, seconds } => {
            let report = latency::measure(common, rate, seconds).await?;
            (serde_json::to_value(&report)?, report.is_good())
        }
        What::Idle { seconds } => (serde_json::to_value(idle::measure(common, seconds).await?)?, true),
    })
}

fn print(report: &serde_json::Value, format: Format) {
    if format == Format::Json {
        return println!("{report}");
    }
    for (name, value) in report.as_object().into_iter().flatten() {
        let value =
            value.as_f64().filter(|_| value.is_f64()).map_or_else(|| value.to_string(), |value| format!("{value:.2}"));
        println!("{name:<40} {value:>14}");
    }
    println!();
}
