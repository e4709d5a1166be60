//! R1 and R2: a relay dies, at each step of the protocol and at any time; all die.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::FutureExt as _;
use rand::RngExt as _;
use testkit::{
    consume::Broker,
    servers::{Flavor, until},
};

use crate::{
    arena::{Arena, LEASE, PATIENCE},
    row::{Case, Row},
};

/// The time limit of a take-over, in addition to the lease.
pub(super) const BEYOND: Duration = Duration::from_secs(3);
/// The time limit for started relays to publish.
const START: Duration = Duration::from_secs(3);

/// The largest number of relays that die in a case.
const MOST_KILLS: u64 = 40;

/// The crash points, and whether the broker may have messages of the dead relay that are not settled.
pub(super) const POINTS: [(&str, bool); 6] = [
    ("after_claim", false),
    ("before_publish", false),
    ("after_publish", true),
    ("before_settle", true),
    ("mid_settle", true),
    ("before_renew", true),
];

pub(super) fn one() -> Row {
    let mut cases = Vec::new();
    for broker in Broker::ALL {
        for (point, sent) in POINTS {
            let case = Case::new(point, move |arena| at_a_point(arena, point, sent).boxed()).on(Flavor::MySql, broker);
            let short = (point, broker) == ("after_publish", Broker::Kafka);
            cases.push(if short { case.short() } else { case });
        }
        for flavor in [Flavor::MySql, Flavor::MariaDb] {
            cases.push(Case::new("at random", |arena| at_random(arena).boxed()).on(flavor, broker));
        }
    }
    Row {
        id: "R1",
        fault: "kill -9 a relay, at each step and at random",
        shows: "take-over within the lease + 3 s; duplicates only of what it held",
        cases,
    }
}

pub(super) fn all() -> Row {
    let case = |broker| {
        let case = Case::new("all", |arena| all_at_once(arena).boxed()).on(Flavor::MySql, broker);
        case.told("no live relay serves it")
    };
    Row {
        id: "R2",
        fault: "kill -9 all relays",
        shows: "the first publish within 3 s after the start; duplicates only of what they held",
        cases: vec![case(Broker::Kafka), case(Broker::RabbitMq).short()],
    }
}

async fn at_a_point(arena: &mut Arena, point: &str, sent: bool) -> Result<()> {
    arena.start_relays(2)?;
    arena.start_load().await?;
    arena.working().await?;
    arena.enough().await?;
    // The server may finish the dead relay's last statement, so that nothing is left behind. In its first settling,
    // another relay would show no more. In a renewal, another relay has to die.
    let settling = point == "mid_settle" || point == "before_renew";
    arena.in_flight_due = point != "mid_settle";
    loop {
        let death = arena.doomed(&arena.settings.clone().crash_at(point)).await?;
        arena.taken_over(death.pid, death.at, LEASE + BEYOND).await?;
        let left = !death.held.is_empty();
        if sent {
            arena.may_be_sent_twice(death.held);
        }
        if left || point != "before_renew" || arena.counts.faults >= MOST_KILLS {
            break;
        }
    }
    if settling {
        return Ok(());
    }
    // The row is written before the reply is counted.
    until(PATIENCE, "a take-over", || async {
        let takeovers = arena.metric("outbox_relay_lease_takeovers_total", "").await;
        ensure!(takeovers > 0.0, "none was counted");
        Ok(())
    })
    .await
}

async fn at_random(arena: &mut Arena) -> Result<()> {
    arena.start().await?;
    // If no relay held a claim at that moment, more have to die: otherwise the run shows nothing.
    while arena.counts.faults < 4 || (arena.counts.in_flight == 0 && arena.counts.faults < MOST_KILLS) {
        let wait = Duration::from_millis(arena.random.random_range(0..1000));
        tokio::time::sleep(wait).await;
        let victim = arena.relays.swap_remove(0);
        let death = arena.kill(victim).await?;
        if !death.held.is_empty() {
            arena.taken_over(death.pid, death.at, LEASE + BEYOND).await?;
        }
        arena.may_be_sent_twice(death.held);
        arena.start_relays(1)?;
        arena.working().await?;
    }
    Ok(())
}

async fn all_at_once(arena: &mut Arena) -> Result<()> {
    arena.start().await?;
    for is_long in [true, false] {
        for relay in std::mem::take(&mut arena.relays) {
            let death = arena.kill(relay).await?;
            arena.may_be_sent_twice(death.held);
        }
        // A dead relay counts as gone 30 s later.
        if is_long {
            arena.told().await?;
        }
        arena.start_relays(3)?;
        arena.recovered(Instant::now(), START).await?;
    }
    Ok(())
}
