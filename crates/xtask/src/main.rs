//! The commands behind `./dev`, one module each; `dev` itself lists them.
#![expect(clippy::print_stdout, reason = "these commands talk to a person")]

mod api;
mod bench;
mod dashboards;
mod demo;
mod deny;
mod faults;
mod fleet;
mod holder;
mod model;
mod package;
mod run;
mod setup;
mod soak;
mod sown;
mod steps;
mod test;
mod test_output;
mod tools;
mod trial;
mod up;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

#[derive(Debug, Parser)]
#[command(name = "dev", about = "Commands of this repository")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A small shop on real servers: orders, two relays of which one is killed, consumers, and a ledger.
    #[command(disable_help_flag = true)]
    Demo(demo::Demo),
    /// Measure a backlog's drain, latency under a steady load, and the costs of an idle relay, sequenced keys and large
    /// tables.
    #[command(disable_help_flag = true)]
    Bench(bench::Bench),
    /// Break everything that can break under a relay, and count the results.
    #[command(disable_help_flag = true)]
    Faults(faults::Faults),
    /// Two relays under a steady load for hours: their resources must not grow, and no message may be lost.
    #[command(disable_help_flag = true)]
    Soak(soak::Soak),
    /// Start MySQL, MariaDB, Kafka and RabbitMQ in the background and print their addresses.
    Up(up::Up),
    /// Stop what `up` started.
    Down,
    /// Open a client of the MySQL that `up` started.
    Mysql(trial::Mysql),
    /// Create a topic in the Kafka that `up` started.
    Topic(trial::Topic),
    /// Create a durable queue in the RabbitMQ that `up` started.
    Queue(trial::Queue),
    /// Start the servers, run a command with their addresses in its environment, stop them.
    Run(run::Run),
    /// Check the protocol's model with a larger bound than `test` does: minutes.
    Model,
    /// Build what a release would upload, each crate from its package alone, with the oldest Rust that it names.
    Package,
    /// Write the lists of the libraries' public items, which `test` compares.
    Api,
    /// Build bugs on purpose, and check that tests catch them.
    Sown(sown::Sown),
    /// Every check that a change has to pass: format, lints, documentation, dependencies, dashboards, tests.
    Test(test::Test),
    /// Download and install everything that the other commands need.
    Setup,
    /// The process that `up` leaves in the background.
    #[command(hide = true)]
    Hold(up::Up),
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,testkit=info,xtask=info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.with_ansi(std::io::stderr().is_terminal()).without_time().with_target(false).init();
    let done = match Arguments::parse().command {
        Command::Bench(bench) => bench.run().await,
        Command::Demo(demo) => demo.run().await,
        Command::Faults(faults) => faults.run().await,
        Command::Soak(soak) => soak.run().await,
        Command::Up(up) => up.run().await.map(|()| ExitCode::SUCCESS),
        Command::Down => up::down().await.map(|()| ExitCode::SUCCESS),
        Command::Mysql(mysql) => mysql.run().map(|()| ExitCode::SUCCESS),
        Command::Topic(topic) => topic.run().await.map(|()| ExitCode::SUCCESS),
        Command::Queue(queue) => queue.run().await.map(|()| ExitCode::SUCCESS),
        Command::Run(run) => run.run().await,
        Command::Test(test) => Box::pin(test.run()).await,
        Command::Model => model::model().await,
        Command::Package => package::verify().await,
        Command::Api => api::write().await.map(|()| ExitCode::SUCCESS),
        Command::Sown(sown) => sown.run().await,
        Command::Setup => setup::setup().await.map(|()| ExitCode::SUCCESS),
        Command::Hold(up) => holder::hold(up.observe).await.map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        tracing::error!("{error:#}");
        ExitCode::FAILURE
    })
}
