//! R4: relays are stopped in order and started again, one after the other.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::FutureExt as _;
use testkit::{consume::Broker, relay::Relay, servers::Flavor};

use crate::{
    arena::{Arena, PATIENCE},
    row::{Case, Row},
};

/// The time limit for a relay to stop.
const STOP: Duration = Duration::from_secs(15);

pub(super) fn row() -> Row {
    let case = |flavor, broker| Case::new("three relays", |arena| restart(arena).boxed()).on(flavor, broker);
    Row {
        id: "R4",
        fault: "SIGTERM: rolling restart of three relays",
        shows: "no duplicate; an end without error within 15 s; leases released at once",
        cases: vec![
            case(Flavor::MySql, Broker::Kafka),
            case(Flavor::MySql, Broker::RabbitMq).short(),
            case(Flavor::MariaDb, Broker::Kafka),
        ],
    }
}

async fn restart(arena: &mut Arena) -> Result<()> {
    arena.start().await?;
    for _ in 0..3 {
        let relay = arena.relays.remove(0);
        arena.strike().await?;
        stop(arena, relay).await?;
        arena.start_relays(1)?;
        arena.working().await?;
    }
    Ok(())
}

/// Stops a relay, and checks that it has released its messages.
pub(super) async fn stop(arena: &mut Arena, mut relay: Relay) -> Result<()> {
    arena.retire(&relay).await?;
    let asked = Instant::now();
    relay.stop(PATIENCE).await?;
    let took = asked.elapsed();
    arena.counts.recovered(took);
    arena.within("the stop", took, STOP);
    arena.pages.push(relay.log()?);
    let left = arena.claimed_by(Some(relay.pid())).await?;
    ensure!(left.is_empty(), "{} messages were not released", left.len());
    Ok(())
}
