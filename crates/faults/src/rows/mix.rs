//! N1: everything at random.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::FutureExt as _;
use rand::{RngExt as _, seq::IndexedRandom as _};
use testkit::{consume::Broker, servers::Flavor};

use super::{broker_down, database_down, rolling_restart};
use crate::{
    arena::{Arena, LEASE},
    row::{Case, Row},
};

#[derive(Debug, Clone, Copy)]
enum Fault {
    KillRelay,
    FreezeRelay,
    RestartRelay,
    KillDatabase,
    FreezeDatabase,
    KillBroker,
    FreezeBroker,
    KillConsumer,
}

const FAULTS: [Fault; 8] = [
    Fault::KillRelay,
    Fault::FreezeRelay,
    Fault::RestartRelay,
    Fault::KillDatabase,
    Fault::FreezeDatabase,
    Fault::KillBroker,
    Fault::FreezeBroker,
    Fault::KillConsumer,
];

pub(super) fn row() -> Row {
    let case = |flavor, broker| {
        Case::new("at random", |arena| mix(arena).boxed()).on(flavor, broker).own_database().own_broker()
    };
    Row {
        id: "N1",
        fault: "a random mix of the others",
        shows: "all of it",
        cases: vec![case(Flavor::MySql, Broker::Kafka), case(Flavor::MariaDb, Broker::RabbitMq)],
    }
}

async fn mix(arena: &mut Arena) -> Result<()> {
    arena.duplicates_are_announced();
    arena.start().await?;
    let end = Instant::now() + arena.lasting(120_000..120_001, 20_000);
    while Instant::now() < end {
        let fault = *FAULTS.choose(&mut arena.random).unwrap_or(&Fault::KillRelay);
        strike(arena, fault).await?;
        tokio::time::sleep(arena.lasting(0..3000, 300)).await;
    }
    Ok(())
}

async fn strike(arena: &mut Arena, fault: Fault) -> Result<()> {
    let short = Duration::from_millis(arena.random.random_range(200..6000));
    match fault {
        Fault::KillRelay => {
            let relay = arena.relays.swap_remove(0);
            arena.kill(relay).await?;
            arena.start_relays(1)
        }
        Fault::FreezeRelay => {
            arena.strike().await?;
            let factor = arena.random.random_range(0.5..2.0);
            if let Some(relay) = arena.relays.first() {
                relay.pause()?;
                tokio::time::sleep(LEASE.mul_f64(factor)).await;
                relay.resume()?;
            }
            Ok(())
        }
        Fault::RestartRelay => {
            let relay = arena.relays.swap_remove(0);
            rolling_restart::stop(arena, relay).await?;
            arena.start_relays(1)
        }
        Fault::KillDatabase => database_down::kill(arena).await,
        Fault::FreezeDatabase => database_down::freeze(arena, short).await,
        Fault::KillBroker => broker_down::kill(arena, short).await,
        Fault::FreezeBroker => broker_down::freeze(arena, short).await,
        Fault::KillConsumer => {
            arena.struck(false);
            arena.consumers()?.kill_one().await?;
            arena.consumers()?.start_one()
        }
    }
}
