//! The command `relay`.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    mysql_outbox::cli::main().await
}
