//! N1: all faults at random.

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
    broker_down, consumer_killed, database_down, database_refuses, rabbitmq_blocks,
    relay_killed::POINTS,
    relay_starved, rolling_restart,
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
    /// A relay dies at a named point of its protocol.
    CrashRelay,
    PanicRelay,
    KillDatabase,
    FreezeDatabase,
    /// All connections end, and hardly any client gets a new one.
    NoConnection,
    KillBroker,
    FreezeBroker,
    KillConsumer,
    CrashConsumer,
    /// RabbitMQ takes no messages.
    Alarm,
    /// No bytes get through in one direction.
    BlackHole(Line),
    /// Connections break at random positions.
    Break(Line),
}

/// The connection between the relays and a server.
#[derive(Debug, Clone, Copy)]
enum Line {
    Database,
    Broker,
}

/// The time limit for the relays to publish again after a line is healed.
const RECOVERY: Duration = Duration::from_secs(20);

const FAULTS: [Fault; 16] = [
    Fault::KillRelay,
    Fault::FreezeRelay,
    Fault::RestartRelay,
    Fault::CrashRelay,
    Fault::PanicRelay,
    Fault::KillDatabase,
    Fault::FreezeDatabase,
    Fault::NoConnection,
    Fault::KillBroker,
    Fault::FreezeBroker,
    Fault::KillConsumer,
    Fault::CrashConsumer,
    Fault::BlackHole(Line::Database),
    Fault::BlackHole(Line::Broker),
    Fault::Break(Line::Database),
    Fault::Break(Line::Broker),
];

pub(super) fn row() -> Row {
    let case = |flavor, broker| {
        Case::new("at random", move |arena| mix(arena, flavor).boxed()).on(flavor, broker).own_database().own_broker()
    };
    Row {
        id: "N1",
        fault: "a random mix of the others",
        shows: "all of it",
        cases: vec![case(Flavor::MySql, Broker::Kafka), case(Flavor::MariaDb, Broker::RabbitMq)],
    }
}

async fn mix(arena: &mut Arena, flavor: Flavor) -> Result<()> {
    arena.duplicates_are_announced();
    let mut faults = FAULTS.to_vec();
    if arena.topic.broker() == Broker::RabbitMq {
        faults.push(Fault::Alarm);
        // On RabbitMQ the hottest key, a sixth of the standard load, goes one message at a time: 130 a second on two
        // processors. About half of the time no message goes at all. At the full rate, that half's backlog would never
        // drain in the other half. At half the rate, 45 messages of that key come a second. That half's backlog then
        // takes a sixth of the time, if nothing else runs. As after a long outage, a quarter is allowed.
        arena.rate /= 2.0;
        arena.drains_within += arena.setup.mix / 4;
    }
    // `disturb` expects the proxies in this order.
    before_the_database(arena).await?;
    before_the_broker(arena).await?;
    arena.start().await?;
    let end = Instant::now() + arena.setup.mix;
    while Instant::now() < end {
        let fault = *faults.choose(&mut arena.random).context("there are no faults")?;
        let before = arena.overdue.len();
        strike(arena, fault, flavor).await.with_context(|| format!("{fault:?}"))?;
        arena.overdue.iter_mut().skip(before).for_each(|late| late.insert_str(0, &format!("{fault:?}: ")));
        tokio::time::sleep(arena.lasting(0..3000, 300)).await;
    }
    Ok(())
}

async fn strike(arena: &mut Arena, fault: Fault, flavor: Flavor) -> Result<()> {
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
        Fault::CrashRelay => {
            // Where relays keep up, no claim lives until its renewal.
            let points: Vec<&str> = POINTS.iter().map(|(point, _)| *point).filter(|it| *it != "before_renew").collect();
            let point = points.choose(&mut arena.random).context("there are no points")?;
            arena.doomed(&arena.settings.clone().crash_at(point)).await?;
            Ok(())
        }
        Fault::PanicRelay => {
            relay_starved::one_panics(arena).await?;
            Ok(())
        }
        Fault::KillDatabase => database_down::kill(arena).await,
        Fault::FreezeDatabase => database_down::freeze(arena, short).await,
        Fault::NoConnection => database_refuses::no_connection_left(arena, flavor, short).await,
        Fault::KillBroker => broker_down::kill(arena, short).await,
        Fault::FreezeBroker => broker_down::freeze(arena, short).await,
        Fault::KillConsumer => {
            arena.struck(false);
            arena.consumers()?.kill_one().await?;
            arena.consumers()?.start_one()
        }
        Fault::CrashConsumer => {
            let point = if arena.random.random() { "before_commit" } else { "before_acknowledge" };
            consumer_killed::crash(arena, point).await
        }
        Fault::Alarm => rabbitmq_blocks::alarm(arena, short).await,
        Fault::BlackHole(line) => disturb(arena, line, None, short).await,
        Fault::Break(line) => {
            let cut = Cut::Within { bytes: 20_000, seed: arena.random.random() };
            disturb(arena, line, Some(cut), short).await
        }
    }
}

/// A black hole in one direction, or cuts, for this duration.
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
