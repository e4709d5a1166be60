//! The command `relay`.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    Box::pin(mysql_outbox::cli::main()).await
}
