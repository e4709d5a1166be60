//! R5: a relay lacks descriptors, memory or processor time, or a part of it panics.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::FutureExt as _;
use testkit::{consume::Broker, judge::Usage, load::Load, servers::Flavor, usage::peak_memory};

use super::{
    between::{alive, progress},
    relay_killed::BEYOND,
};
use crate::{
    arena::{Arena, LEASE, PATIENCE, Pace},
    death::Death,
    ending::PANICKED,
    row::{Case, Row},
};

/// The limit of memory in bytes, resident or not: 32 MiB of messages, their copies in flight, and the program.
const MEMORY: u64 = 256 << 20;

pub(super) fn row() -> Row {
    let mut cases = Vec::new();
    for broker in Broker::ALL {
        cases.push(Case::new("64 descriptors", |arena| few_descriptors(arena).boxed()).on(Flavor::MySql, broker));
        cases.push(Case::new("large payloads", |arena| large_payloads(arena).boxed()).on(Flavor::MySql, broker));
        cases.push(Case::new("a tenth of a processor", |arena| slow(arena).boxed()).on(Flavor::MySql, broker));
    }
    cases.push(Case::new("a panic", |arena| panic(arena).boxed()).short());
    Row {
        id: "R5",
        fault: "few descriptors, little memory, a tenth of a processor, a panic",
        shows: "bounded use, no lease lost for slowness, a panic ends the process and another takes over",
        cases,
    }
}

async fn few_descriptors(arena: &mut Arena) -> Result<()> {
    arena.settings = arena.settings.clone().limit("-n 64");
    arena.start().await?;
    arena.strike().await?;
    let more = if arena.setup.pace == Pace::Full { 5000.0 } else { 500.0 };
    progress(arena, more).await?;
    for relay in &arena.relays {
        let used = relay.metrics().await?.sum("process_open_fds");
        ensure!(used > 0.0 && used < 64.0, "{used} descriptors are open");
    }
    Ok(())
}

/// A backlog of the largest payloads, many times a relay's limit. A slow broker does not confirm some in time.
async fn large_payloads(arena: &mut Arena) -> Result<()> {
    arena.duplicates_are_announced();
    // A relay that asks for more memory dies.
    arena.settings = arena.settings.clone().limit(&format!("-d {}", MEMORY >> 10));
    let transactions = if arena.setup.pace == Pace::Full { 2000 } else { 500 };
    let load = Load::new(arena.topic.name()).payload(65_536..=65_536).transactions(transactions).seed(999);
    load.run(&arena.database, &arena.ledger).await?;
    let newest = arena.database.number("SELECT CAST(MAX(id) AS SIGNED) FROM outbox_messages").await?;
    // Messages published before the consumers have their queue do not reach them.
    arena.start_load().await?;
    arena.start_relays(2)?;
    arena.strike().await?;
    // Not the standard load: on RabbitMQ its hottest key goes one message at a time, and can come faster.
    let gone = format!("SELECT COUNT(*) = 0 FROM outbox_pending WHERE id <= {newest}");
    arena.database.wait_for(2 * PATIENCE, &gone).await?;
    alive(arena).await?;
    for relay in &arena.relays {
        arena.usage.push(Usage {
            what: "peak of resident memory".into(),
            used: peak_memory(relay.pid())?,
            limit: MEMORY,
        });
    }
    Ok(())
}

/// One relay runs for ten of every hundred milliseconds: slow, but it never loses a lease that it renews.
async fn slow(arena: &mut Arena) -> Result<()> {
    arena.start().await?;
    arena.strike().await?;
    let end = std::time::Instant::now() + arena.lasting(10_000..15_000, 4000);
    let relay = arena.relays.first().context("no relay runs")?;
    while std::time::Instant::now() < end {
        relay.pause()?;
        tokio::time::sleep(Duration::from_millis(90)).await;
        relay.resume()?;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let lost = arena.metric("outbox_relay_leases_lost_total", "").await;
    ensure!(lost < 0.5 || arena.setup.pace == Pace::Short, "{lost} leases were lost");
    arena.duplicates_are_announced();
    Ok(())
}

/// Starts one more relay, a part of which panics.
pub(super) async fn one_panics(arena: &mut Arena) -> Result<Death> {
    arena.panics += 1;
    let death = arena.doomed(&arena.settings.clone().panic_at("after_publish")).await?;
    let log = arena.pages.last().context("a dead relay has left no log")?;
    ensure!(log.contains(PANICKED), "a relay that was to panic does not say so:\n{log}");
    Ok(death)
}

async fn panic(arena: &mut Arena) -> Result<()> {
    arena.start_relays(2)?;
    arena.start_load().await?;
    arena.working().await?;
    arena.enough().await?;
    let death = one_panics(arena).await?;
    arena.taken_over(death.pid, death.at, LEASE + BEYOND).await?;
    arena.may_be_sent_twice(death.held);
    Ok(())
}
