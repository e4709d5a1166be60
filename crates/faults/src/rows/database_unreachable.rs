//! D2: the database is unreachable, or slow.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::FutureExt as _;
use rand::RngExt as _;
use testkit::{
    consume::Broker,
    ledger::Draft,
    load,
    proxy::{Direction, Proxy},
    servers::Flavor,
};

use super::between::{SESSIONS, alive, before_the_database, counted, progress, readiness, recovery};
use crate::{
    arena::{Arena, PATIENCE},
    row::{Case, Row},
};

/// The time limit for all connections to be usable after healing.
const USABLE: Duration = Duration::from_secs(5);
/// The latency of a round trip, half of it in each direction.
const ROUND_TRIP: Duration = Duration::from_millis(200);
/// Messages of one claim of a slow relay, and of its whole backlog.
const CLAIM: u32 = 100;
const BACKLOG: u32 = 1500;

pub(super) fn row() -> Row {
    let ways: [(&str, &'static [Direction]); 3] = [
        ("black hole to the server", &[Direction::ToServer]),
        ("black hole to the client", &[Direction::ToClient]),
        ("black hole in both directions", &Direction::BOTH),
    ];
    let mut cases = Vec::new();
    for (flavor, broker) in [(Flavor::MySql, Broker::Kafka), (Flavor::MariaDb, Broker::RabbitMq)] {
        for (name, directions) in ways {
            let case = Case::new(name, |arena| black_hole(arena, directions).boxed()).on(flavor, broker);
            let short = flavor == Flavor::MariaDb && directions.len() == 2;
            cases.push(if short { case.short() } else { case });
        }
        cases.push(Case::new("latency with stalls", |arena| slow(arena).boxed()).on(flavor, broker));
    }
    Row {
        id: "D2",
        fault: "black hole to the database in each direction and both; latency of 200 ms with stalls",
        shows: "all connections usable within 5 s; 60 % of the rate that the latency allows",
        cases,
    }
}

async fn black_hole(arena: &mut Arena, directions: &[Direction]) -> Result<()> {
    let proxy = before_the_database(arena).await?;
    arena.start_relays(3)?;
    arena.start_load().await?;
    arena.working().await?;
    for _ in 0..2 {
        let held = proxy.counts().held;
        arena.strike().await?;
        for direction in directions {
            proxy.black_hole(*direction);
        }
        readiness(arena, "the black hole to be named", |status, body| status == 503 && body.contains("database: "))
            .await?;
        let longer = Duration::from_millis(arena.random.random_range(0..5000));
        tokio::time::sleep(longer).await;
        alive(arena).await?;
        ensure!(proxy.counts().held > held, "nothing was held back");
        proxy.heal();
        recovery(arena, USABLE).await?;
        progress(arena, 50.0).await?;
        counted(&proxy, "abandoned connections to end", |counts| counts.open <= 3 * SESSIONS).await?;
    }
    arena.duplicates_are_announced();
    Ok(())
}

/// One claim takes two round trips: a look and a claim. No other step may take longer than it must.
async fn slow(arena: &mut Arena) -> Result<()> {
    let proxy = before_the_database(arena).await?;
    let latency = |proxy: &Proxy| Direction::BOTH.iter().for_each(|way| proxy.latency(*way, ROUND_TRIP / 2));
    latency(&proxy);
    arena.settings = arena.settings.clone().set("relay", "lease", "9s").set("relay", "settle_deadline", "2s").set(
        "relay",
        "claim_messages",
        i64::from(CLAIM),
    );
    let drafts: Vec<Draft> = (0..BACKLOG).map(|number| Draft::new(arena.topic.name(), number.to_string())).collect();
    load::commit(&arena.database, &arena.ledger, &drafts, |message| message).await?;
    arena.start_relays(1)?;
    arena.working().await?;
    let start = Instant::now();
    let mut stalled = Duration::ZERO;
    for _ in 0..3 {
        let stall = Duration::from_millis(arena.random.random_range(100..800));
        let held = proxy.counts().held;
        arena.strike().await?;
        proxy.black_hole(Direction::ToClient);
        counted(&proxy, "a reply to be held back", |counts| counts.held > held).await?;
        tokio::time::sleep(stall).await;
        proxy.heal();
        latency(&proxy);
        stalled += stall;
    }
    arena.database.wait_until_drained(PATIENCE).await?;
    let took = start.elapsed().saturating_sub(stalled);
    let allowed = 2 * ROUND_TRIP * (BACKLOG / CLAIM);
    arena.counts.recovered(took);
    arena.within("draining", took, allowed.mul_f64(1.0 / 0.6));
    Ok(())
}
