//! D1: the database server dies and comes back, or freezes.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::FutureExt as _;
use testkit::{consume::Broker, servers::Flavor};

use crate::{
    arena::Arena,
    row::{Case, Row},
};

/// The time limit for the relays to publish again after the server answers.
pub(super) const RECOVERY: Duration = Duration::from_secs(10);

pub(super) fn row() -> Row {
    let mut cases = Vec::new();
    for (flavor, broker) in [(Flavor::MySql, Broker::Kafka), (Flavor::MariaDb, Broker::RabbitMq)] {
        let killed = Case::new("killed", |arena| killed(arena).boxed()).on(flavor, broker).own_database();
        cases.push(if flavor == Flavor::MySql { killed.short() } else { killed });
        cases.push(Case::new("frozen", |arena| frozen(arena).boxed()).on(flavor, broker).own_database());
    }
    Row {
        id: "D1",
        fault: "kill -9 mysqld and restart; SIGSTOP",
        shows: "every relay publishes within 10 s after the server answers",
        cases,
    }
}

async fn killed(arena: &mut Arena) -> Result<()> {
    arena.duplicates_are_announced();
    arena.start().await?;
    for _ in 0..2 {
        kill(arena).await?;
    }
    Ok(())
}

/// Kills the server, leaves it down for a while and starts it again.
pub(super) async fn kill(arena: &mut Arena) -> Result<()> {
    arena.strike().await?;
    arena.ground.mysql()?.kill()?;
    tokio::time::sleep(arena.lasting(0..3000, 500)).await;
    arena.ground.mysql()?.restart().await?;
    arena.recovered(Instant::now(), RECOVERY).await
}

async fn frozen(arena: &mut Arena) -> Result<()> {
    arena.duplicates_are_announced();
    arena.start().await?;
    let long = arena.lasting(5000..60_000, 4000);
    freeze(arena, long).await
}

/// Freezes the server for this duration.
pub(super) async fn freeze(arena: &mut Arena, time: Duration) -> Result<()> {
    arena.strike().await?;
    arena.ground.mysql()?.pause()?;
    tokio::time::sleep(time).await;
    arena.ground.mysql()?.resume()?;
    arena.recovered(Instant::now(), RECOVERY).await
}
