//! C1: a consumer dies between its commit and its acknowledgement, and before its commit.

use std::os::unix::process::ExitStatusExt as _;

use anyhow::{Result, ensure};
use futures_util::FutureExt as _;
use testkit::{consume::Broker, servers::Flavor};

use crate::{
    arena::{Arena, PATIENCE},
    death::ABORT,
    row::{Case, Row},
};

pub(super) fn row() -> Row {
    let mut cases = Vec::new();
    for (flavor, broker) in [(Flavor::MySql, Broker::Kafka), (Flavor::MariaDb, Broker::RabbitMq)] {
        for point in ["before_commit", "before_acknowledge"] {
            let case = Case::new(point, move |arena| kill(arena, point).boxed()).on(flavor, broker);
            let short = (point, flavor) == ("before_acknowledge", Flavor::MySql);
            cases.push(if short { case.short() } else { case });
        }
    }
    Row {
        id: "C1",
        fault: "kill consumers before their commit, and before their acknowledgement",
        shows: "each effect once",
        cases,
    }
}

async fn kill(arena: &mut Arena, point: &str) -> Result<()> {
    arena.start().await?;
    for _ in 0..3 {
        crash(arena, point).await?;
        let effects = arena.database.number("SELECT COUNT(*) FROM test_effects").await?;
        let more = format!("SELECT COUNT(*) > {effects} FROM test_effects");
        arena.database.wait_for(PATIENCE, &more).await?;
    }
    Ok(())
}

/// Kills a consumer, replaces it by one that dies at this point, and starts another.
pub(super) async fn crash(arena: &mut Arena, point: &str) -> Result<()> {
    arena.consumers()?.kill_one().await?;
    let mut doomed = arena.consumers()?.doomed(point)?;
    // Waiting for it would close the pipe that tells it to go on.
    let _pipe = doomed.stdin.take();
    let ended = tokio::time::timeout(PATIENCE, doomed.wait()).await??;
    ensure!(ended.signal() == Some(ABORT), "a consumer that was to die ended with {ended}");
    // It dies while it handles a message.
    arena.struck(true);
    arena.consumers()?.start_one()
}
