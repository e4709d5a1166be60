//! R3: a relay is frozen for longer than its lease, and goes on as if nothing had happened.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures_util::FutureExt as _;
use outbox_core::{
    Uuid,
    sqlx::{self, Connection as _},
    store::{error_number, session},
};
use testkit::{consume::Broker, relay::Relay, servers::Flavor};

use crate::{
    arena::{Arena, LEASE, PATIENCE, Pace},
    row::{Case, Row},
};

use super::relay_killed::BEYOND;

/// The server's number for "deadlock found".
const DEADLOCK: u16 = 1213;
const LOCK_WAIT: u16 = 1205;
/// The number of tries to freeze a relay whose claim another takes over.
const ROUNDS: usize = 5;

/// Points at which a relay pauses with a claim that it is not settling. The flag: whether the broker has its messages,
/// or gets them when it resumes: the decision to publish comes before.
const POINTS: [(&str, bool); 4] =
    [("after_claim", false), ("before_publish", true), ("after_publish", true), ("before_settle", true)];

pub(super) fn row() -> Row {
    let mut cases = Vec::new();
    for (flavor, broker) in [(Flavor::MySql, Broker::Kafka), (Flavor::MariaDb, Broker::RabbitMq)] {
        for (name, factor) in [("0.5 leases", 0.5), ("1.5 leases", 1.5), ("3 leases", 3.0)] {
            let case = Case::new(name, move |arena| freeze(arena, factor).boxed()).on(flavor, broker);
            let short = (name, broker) == ("1.5 leases", Broker::RabbitMq);
            cases.push(if short { case.short() } else { case });
        }
    }
    for (flavor, broker) in [(Flavor::MySql, Broker::Kafka), (Flavor::MariaDb, Broker::RabbitMq)] {
        for (point, sent) in POINTS {
            cases.push(Case::new(point, move |arena| freeze_at(arena, point, sent).boxed()).on(flavor, broker));
        }
    }
    Row {
        id: "R3",
        fault: "SIGSTOP a relay for 0.5 to 3 leases, at any time and at each step until another has taken over",
        shows: "the fence refuses what it writes afterwards; duplicates only of what it held",
        cases,
    }
}

async fn freeze(arena: &mut Arena, factor: f64) -> Result<()> {
    // S1 freezes the owner of a tail. Beside one, the first relay may have nothing for ever.
    arena.with_tails(false)?;
    arena.start().await?;
    let mut fenced = 0.0;
    for _ in 0..ROUNDS {
        let held = pause(arena).await?;
        arena.struck(true);
        arena.may_be_sent_twice(held);
        tokio::time::sleep(LEASE.mul_f64(factor)).await;
        let relay = first(arena)?;
        relay.resume()?;
        // A relay that has settled and claimed anew has noticed its lost claims.
        let claimed = |m: &testkit::relay::Metrics| m.sum("outbox_relay_claimed_messages_total");
        let before = claimed(&relay.metrics().await?);
        relay.wait_for_metrics(PATIENCE, "the relay to go on", |m| claimed(m) > before).await?;
        fenced = relay.metrics().await?.sum("outbox_relay_leases_lost_total");
        if factor < 1.0 || fenced > 0.0 {
            break;
        }
    }
    if factor < 1.0 {
        // On a shared machine, the rest of the lease may run out as well.
        ensure!(fenced < 0.5 || arena.setup.pace == Pace::Short, "{fenced} leases were lost before their time");
        Ok(())
    } else {
        arena.witness("the fence", fenced > 0.0);
        let takeovers = arena.metric("outbox_relay_lease_takeovers_total", "").await;
        arena.witness("a take-over", takeovers > 0.0);
        Ok(())
    }
}

/// Pauses a relay at this point with its first claim, until another has taken it over.
async fn freeze_at(arena: &mut Arena, point: &str, sent: bool) -> Result<()> {
    arena.with_tails(false)?;
    arena.start_relays(2)?;
    arena.start_load().await?;
    arena.working().await?;
    arena.enough().await?;
    let mut victim = arena.relay(&arena.settings.clone().pause_at(point))?;
    victim.wait_for_pause(PATIENCE).await?;
    let stopped = Instant::now();
    let held = arena.claimed_by(Some(victim.pid())).await?;
    ensure!(!held.is_empty(), "it holds nothing at {point}");
    arena.struck(true);
    arena.taken_over(victim.pid(), stopped, LEASE + BEYOND).await?;
    victim.resume()?;
    if sent {
        // Messages of any relay in flight at that moment may be late as well.
        arena.duplicates_are_announced();
        let fenced = |m: &testkit::relay::Metrics| m.sum("outbox_relay_leases_lost_total") > 0.0;
        victim.wait_for_metrics(PATIENCE, "the fence", fenced).await?;
    }
    arena.relays.push(victim);
    arena.working().await?;
    let takeovers = arena.metric("outbox_relay_lease_takeovers_total", "").await;
    arena.witness("a take-over", takeovers > 0.0);
    Ok(())
}

/// Freezes the first relay while it holds a claim; returns the messages that it holds.
pub(super) async fn pause(arena: &mut Arena) -> Result<HashSet<Uuid>> {
    for _ in 0..1000 {
        let relay = first(arena)?;
        let pid = relay.pid();
        relay.pause()?;
        settled(arena).await?;
        let held = arena.claimed_by(Some(pid)).await?;
        if !held.is_empty() {
            return Ok(held);
        }
        first(arena)?.resume()?;
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
    anyhow::bail!("the relay never held a claim")
}

/// Waits until the server has executed the last statement of a frozen relay, which holds the locks of its claims until
/// then.
async fn settled(arena: &Arena) -> Result<()> {
    let mut connection = arena.database.connect().await?;
    session::prepare(&mut connection).await?;
    loop {
        match sqlx::raw_sql("SELECT claim_id FROM outbox_claims FOR UPDATE").execute(&mut connection).await {
            // A relay that settles several claims may lock them in another order. One that is frozen within a renewal
            // keeps its locks until the server ends its session.
            Err(error) if matches!(error_number(&error), Some(DEADLOCK | LOCK_WAIT)) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(connection.close().await?),
        }
    }
}

fn first(arena: &mut Arena) -> Result<&mut Relay> {
    ensure!(!arena.relays.is_empty(), "no relay runs");
    arena.relays.first_mut().ok_or_else(|| anyhow::anyhow!("no relay runs"))
}
