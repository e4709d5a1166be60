//! The command `relay`.

use std::process::ExitCode;

use clap::Parser as _;
use outbox_relay::cli;

#[tokio::main]
async fn main() -> ExitCode {
    cli::main(cli::Cli::parse()).await
}
