//! D3: a reply is lost, or a connection to the database breaks somewhere.

use std::time::Instant;

use anyhow::{Result, ensure};
use futures_util::FutureExt as _;
use rand::RngExt as _;
use testkit::{
    consume::Broker,
    ledger::Outcome,
    proxy::{Cut, Direction},
    servers::Flavor,
};

use super::{
    between::{before_the_database, before_the_producers, counted, progress},
    database_down::RECOVERY,
};
use crate::{
    arena::Arena,
    row::{Case, Row},
};

/// The number of cut replies in one case, and of broken connections in each direction.
const REPLIES: u64 = 20;
const BROKEN: u64 = 30;

/// A relay's statements, each identified by a part of it, and whether messages may be sent again: a lease that is not
/// renewed is lost.
const WRITES: [(&str, &[u8], bool); 4] = [
    ("reply to a claim cut", b"INSERT INTO outbox_claims", false),
    ("reply to a settling cut", b"REPLACE INTO outbox_sent", false),
    ("reply to a renewal cut", b"SET c.lease_until", true),
    ("reply to a look cut", b"SELECT 0, version", false),
];

pub(super) fn row() -> Row {
    let mut cases = Vec::new();
    for (flavor, broker) in [(Flavor::MySql, Broker::Kafka), (Flavor::MariaDb, Broker::RabbitMq)] {
        let case = Case::new("reply to COMMIT cut", |arena| commits(arena).boxed());
        cases.push(case.on(flavor, broker));
        let case = Case::new("producers' connections break", |arena| producers(arena).boxed());
        cases.push(case.on(flavor, broker));
        let case = Case::new("relays' connections break", |arena| relays(arena).boxed()).on(flavor, broker);
        cases.push(if flavor == Flavor::MariaDb { case.short() } else { case });
    }
    for (name, statement, twice) in WRITES {
        cases.push(Case::new(name, move |arena| replies(arena, statement, twice).boxed()));
    }
    Row {
        id: "D3",
        fault: "reply to COMMIT cut; connections reset at random byte positions",
        shows: "unknown outcomes resolve to one of the two; every relay goes on",
        cases,
    }
}

async fn commits(arena: &mut Arena) -> Result<()> {
    let proxy = before_the_producers(arena).await?;
    arena.start_relays(3)?;
    arena.start_load().await?;
    arena.working().await?;
    proxy.cut_replies(REPLIES, |request| request.ends_with(b"COMMIT"));
    counted(&proxy, "replies to be cut", |counts| counts.replies_cut == REPLIES).await?;
    (0..REPLIES).for_each(|_| arena.struck(true));
    progress(arena, 50.0).await?;
    let unknown = arena.ledger.count(Outcome::Unknown) as u64;
    ensure!(unknown >= REPLIES, "{unknown} outcomes are unknown");
    Ok(())
}

async fn producers(arena: &mut Arena) -> Result<()> {
    let proxy = before_the_producers(arena).await?;
    arena.start_relays(3)?;
    arena.start_load().await?;
    arena.working().await?;
    for direction in Direction::BOTH {
        let before = proxy.counts();
        proxy.cut(direction, Cut::Within { bytes: 20_000, seed: arena.random.random() });
        counted(&proxy, "connections to break", |counts| counts.cut >= before.cut + BROKEN).await?;
        proxy.heal();
        let after = proxy.counts();
        (before.cut..after.cut)
            .for_each(|cut| arena.struck(cut < before.cut + after.cut_in_flight - before.cut_in_flight));
        progress(arena, 50.0).await?;
    }
    Ok(())
}

async fn relays(arena: &mut Arena) -> Result<()> {
    let proxy = before_the_database(arena).await?;
    arena.start_relays(3)?;
    arena.start_load().await?;
    arena.working().await?;
    for direction in Direction::BOTH {
        let cut = proxy.counts().cut;
        arena.strike().await?;
        proxy.cut(direction, Cut::Within { bytes: 40_000, seed: arena.random.random() });
        counted(&proxy, "connections to break", |counts| counts.cut >= cut + BROKEN).await?;
        proxy.heal();
        arena.recovered(Instant::now(), RECOVERY).await?;
    }
    arena.duplicates_are_announced();
    Ok(())
}

async fn replies(arena: &mut Arena, statement: &'static [u8], twice: bool) -> Result<()> {
    let proxy = before_the_database(arena).await?;
    arena.start_relays(3)?;
    arena.start_load().await?;
    arena.working().await?;
    arena.strike().await?;
    proxy.cut_replies(5, move |request| request.windows(statement.len()).any(|part| part == statement));
    counted(&proxy, "replies to be cut", |counts| counts.replies_cut == 5).await?;
    arena.recovered(Instant::now(), RECOVERY).await?;
    if twice {
        arena.duplicates_are_announced();
    }
    Ok(())
}
