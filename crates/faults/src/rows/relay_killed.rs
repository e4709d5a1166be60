//! R1: a relay dies, at each step of the protocol and at any time.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::FutureExt as _;
use rand::RngExt as _;
use testkit::{consume::Broker, servers::Flavor};

use crate::{
    arena::{Arena, LEASE, PATIENCE},
    row::{Case, Row},
};

/// A take-over may take the lease and so long.
const BEYOND: Duration = Duration::from_secs(3);

/// The crash points, and whether the broker may have messages of the dead relay that are not settled.
const POINTS: [(&str, bool); 5] = [
    ("after_claim", false),
    ("after_publish", true),
    ("before_settle", true),
    ("mid_settle", true),
    ("before_renew", true),
];

pub(super) fn row() -> Row {
    let mut cases = Vec::new();
    for broker in Broker::ALL {
        for (point, sent) in POINTS {
            let case = Case::new(point, move |arena| at_a_point(arena, point, sent).boxed());
            cases.push(case.on(Flavor::MySql, broker));
        }
        for flavor in [Flavor::MySql, Flavor::MariaDb] {
            cases.push(Case::new("at random", |arena| at_random(arena).boxed()).on(flavor, broker));
        }
    }
    Row {
        id: "R1",
        fault: "kill -9 a relay, at each step of the protocol and at random",
        shows: "take-over within the lease + 3 s; duplicates only of what it held",
        cases,
    }
}

async fn at_a_point(arena: &mut Arena, point: &str, sent: bool) -> Result<()> {
    arena.start_relays(2)?;
    arena.start_load().await?;
    arena.working().await?;
    let mut victim = arena.relay(&arena.settings.clone().crash_at(point))?;
    let status = victim.wait_for_end(PATIENCE).await?;
    ensure!(!status.success(), "the relay was to die at {point}");
    let held = dead(arena, victim.pid(), Instant::now(), sent).await?;
    // The server may have finished the settling that the dead relay asked of it last.
    let shown = held > 0 || point == "mid_settle";
    arena.expected = arena.expected.clone().witness("a claim left behind", shown);
    Ok(())
}

async fn at_random(arena: &mut Arena) -> Result<()> {
    arena.start_relays(2)?;
    arena.start_load().await?;
    for _ in 0..4 {
        arena.start_relays(1)?;
        arena.working().await?;
        let wait = Duration::from_millis(arena.random.random_range(0..1000));
        tokio::time::sleep(wait).await;
        let victim = arena.relays.swap_remove(0);
        victim.kill()?;
        dead(arena, victim.pid(), Instant::now(), true).await?;
    }
    Ok(())
}

/// A relay is dead: notes what it held, and waits until others have taken it over. Returns how many messages it held.
/// `sent`: it may have sent them.
async fn dead(arena: &mut Arena, pid: u32, died: Instant, sent: bool) -> Result<usize> {
    let held = arena.claimed_by(Some(pid)).await?;
    arena.struck(!held.is_empty());
    let count = held.len();
    if sent {
        arena.may_be_sent_twice(held);
    }
    if count > 0 {
        let took = arena.taken_over(pid, died).await?;
        arena.within("the take-over", took, LEASE + BEYOND)?;
    }
    Ok(count)
}
