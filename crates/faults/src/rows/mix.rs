//! N1: everything at random.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use futures_util::FutureExt as _;
use rand::{RngExt as _, seq::IndexedRandom as _};
use testkit::{
    consume::Broker,
    proxy::{Cut, Direction},
    servers::Flavor,
};

use super::{
    between::{before_the_broker, before_the_database, counted},
    broker_down, database_down, rolling_restart,
};
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
    /// Nothing gets through in one direction.
    BlackHole(Line),
    /// Connections break at random positions.
    Break(Line),
}

/// Between the relays and a server.
#[derive(Debug, Clone, Copy)]
enum Line {
    Database,
    Broker,
}

/// Within which the relays publish again after a line is whole.
const RECOVERY: Duration = Duration::from_secs(20);

const FAULTS: [Fault; 12] = [
    Fault::KillRelay,
    Fault::FreezeRelay,
    Fault::RestartRelay,
    Fault::KillDatabase,
    Fault::FreezeDatabase,
    Fault::KillBroker,
    Fault::FreezeBroker,
    Fault::KillConsumer,
    Fault::BlackHole(Line::Database),
    Fault::BlackHole(Line::Broker),
    Fault::Break(Line::Database),
    Fault::Break(Line::Broker),
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
    // `disturb` finds them in this order.
    before_the_database(arena).await?;
    before_the_broker(arena).await?;
    arena.start().await?;
    let end = Instant::now() + arena.setup.mix;
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
        Fault::BlackHole(line) => disturb(arena, line, None, short).await,
        Fault::Break(line) => {
            let cut = Cut::Within { bytes: 20_000, seed: arena.random.random() };
            disturb(arena, line, Some(cut), short).await
        }
    }
}

/// A black hole in one direction, or cuts, for so long.
async fn disturb(arena: &mut Arena, line: Line, cut: Option<Cut>, time: Duration) -> Result<()> {
    let proxy = match line {
        Line::Database => arena.proxies.first(),
        Line::Broker => arena.proxies.get(1),
    };
    let proxy = Arc::clone(proxy.context("there is no proxy")?);
    let direction = if arena.random.random() { Direction::ToServer } else { Direction::ToClient };
    arena.strike().await?;
    let before = proxy.counts();
    match cut {
        Some(cut) => proxy.cut(direction, cut),
        None => proxy.black_hole(direction),
    }
    let struck = |counts: testkit::proxy::Counts| counts.held > before.held || counts.cut > before.cut;
    counted(&proxy, "something to be held back or cut", struck).await?;
    tokio::time::sleep(time).await;
    proxy.heal();
    arena.recovered(Instant::now(), RECOVERY).await
}
