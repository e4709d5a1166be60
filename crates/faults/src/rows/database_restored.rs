//! DR1: the database is restored from a snapshot, or a lagging replica is promoted; then `relay recover`.
//!
//! The consumers have their own database, which is not restored: they remember messages that the outbox has forgotten.
//! They refuse messages out of the order of a sequenced key. The margin is far too small, so that only the epoch
//! distinguishes new numbers from old ones.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, Result, ensure};
use futures_util::FutureExt as _;
use outbox_consumer::SequencePolicy;
use outbox_core::{
    EPOCH_HEADER, SEQUENCE_HEADER, Uuid,
    lease::Leases,
    sqlx::{self, mysql::MySqlConnectOptions},
};
use serde::Deserialize;
use testkit::{
    accounts::Account,
    consume::Broker,
    database::Database,
    judge::{Expectations, Totals},
    ledger::{Entry, Outcome},
    relay::Relay,
    servers::{Flavor, until},
};
use tokio::process::Command;

use super::rolling_restart::stop;
use crate::{
    arena::{Arena, PATIENCE},
    row::{Case, Row},
};

/// Far more numbers were assigned since the snapshot.
const MARGIN: u64 = 1;
/// A named lease that is in the snapshot, and one that is not.
const KNOWN: &str = "known";
const UNKNOWN: &str = "unknown";

pub(super) fn row() -> Row {
    // On one queue of RabbitMQ several consumers do not keep the order of a key.
    let case = |flavor| Case::new("snapshot", move |arena| restored(arena, flavor).boxed()).on(flavor, Broker::Kafka);
    Row {
        id: "DR1",
        fault: "snapshot, traffic, restore, `relay recover`, traffic",
        shows: "no consumer refuses what is committed after the restore; no fence is given twice; what is repeated \
                equals the plan",
        cases: vec![case(Flavor::MySql).short(), case(Flavor::MariaDb)],
    }
}

async fn restored(arena: &mut Arena, flavor: Flavor) -> Result<()> {
    (arena.sequence, arena.inboxes) = (SequencePolicy::Refuse, arena.ground.database(flavor).await?);
    arena.start().await?;
    let mut fences = Fences::new(&arena.database)?;
    fences.give(&[KNOWN]).await?;
    snapshot(arena).await?;
    fences.give(&[KNOWN, UNKNOWN]).await?;
    fences.give(&[KNOWN, UNKNOWN]).await?;
    traffic(arena).await?;
    let before = end_of_the_old_world(arena).await?;
    arena.database.restore().await?;
    let plan = recover(arena).await?;
    let unsent = unsent(&arena.database).await?;
    ensure!(plan.unsent_messages == unsent.len(), "{} messages are unsent: {plan:?}", unsent.len());
    arena.witness("a message that is unsent in the snapshot", !unsent.is_empty());
    forget(arena).await?;
    arena.restored.repeated = unsent.len() as u64;
    arena.may_be_sent_twice(unsent.clone());
    let old = known(arena);
    let raised = raised_keys(&arena.database).await?;
    arena.start_relays(3)?;
    arena.start_producers().await?;
    fences.give(&[KNOWN, UNKNOWN]).await?;
    fences.give(&[KNOWN, UNKNOWN]).await?;
    arena.working().await?;
    traffic(arena).await?;
    arena.at_rest().await?;
    arena.ledger.change(|entries| {
        let new = entries.iter_mut().filter(|entry| !old.contains(&entry.id));
        new.for_each(|entry| renumber(entry, &raised, plan.new_epoch));
    });
    let after = arrivals(arena).await?;
    let kept_back = unsent.iter().filter(|id| after.get(id) <= before.get(id)).count();
    ensure!(kept_back == 0, "{kept_back} messages of the plan were not repeated");
    Ok(())
}

/// Freezes the relays while messages come, so that the snapshot has claimed and unclaimed ones.
async fn snapshot(arena: &mut Arena) -> Result<()> {
    arena.strike().await?;
    arena.relays.iter().try_for_each(Relay::pause)?;
    arena.database.wait_for(PATIENCE, "SELECT COUNT(*) > 20 FROM outbox_pending").await?;
    arena.database.keep().await?;
    arena.relays.iter().try_for_each(Relay::resume)
}

/// Waits for a hundred more transactions.
async fn traffic(arena: &Arena) -> Result<()> {
    let now = arena.database.number("SELECT COUNT(*) FROM test_orders").await?;
    arena.database.wait_for(PATIENCE, &format!("SELECT COUNT(*) > {} FROM test_orders", now + 100)).await
}

/// Sends, consumes and judges the messages that will be forgotten. Returns the number of arrivals of each.
async fn end_of_the_old_world(arena: &mut Arena) -> Result<HashMap<Uuid, usize>> {
    arena.at_rest().await?;
    for relay in std::mem::take(&mut arena.relays) {
        stop(arena, relay).await?;
    }
    let late = Totals::of(&arena.retired, false).late();
    arena.judged().await?.assert_ok(&Expectations::new().at_least(100).late(late)).context("before the restore")?;
    arrivals(arena).await
}

async fn arrivals(arena: &mut Arena) -> Result<HashMap<Uuid, usize>> {
    let mut counts = HashMap::new();
    arena.topic.read().await?.iter().for_each(|arrival| *counts.entry(arrival.id).or_default() += 1);
    Ok(counts)
}

/// The plan of `relay recover`.
#[derive(Debug, Deserialize)]
struct Plan {
    new_epoch: u64,
    unsent_messages: usize,
}

/// Runs `relay recover` until the leases in the snapshot have ended. Returns its plan.
async fn recover(arena: &Arena) -> Result<Plan> {
    let url = arena.database.url_as(Account::Owner)?;
    let margin = MARGIN.to_string();
    until(PATIENCE, "the recovery", async || {
        let mut command = Command::new(&arena.setup.relay);
        let command = command.args(["recover", "--yes", "--format", "json", "--margin", &margin]);
        let output = command.env("RELAY__DATABASE__URL", &url).output().await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    })
    .await
}

async fn unsent(database: &Database) -> Result<HashSet<Uuid>> {
    let tables = database.tables().await?;
    Ok(tables.pending.union(&tables.delayed).copied().collect())
}

/// Forgets the ledger's messages that are not in the snapshot: the restored tables do not know them.
async fn forget(arena: &mut Arena) -> Result<()> {
    let business = arena.database.tables().await?.business;
    let forgotten = &mut arena.restored.forgotten;
    arena.ledger.change(|entries| {
        entries.retain(|entry| {
            let kept = entry.outcome == Outcome::RolledBack || business.contains(&entry.id);
            kept || !forgotten.insert(entry.id)
        });
    });
    Ok(())
}

fn known(arena: &Arena) -> HashSet<Uuid> {
    arena.ledger.entries().iter().map(|entry| entry.id).collect()
}

/// The sequenced keys in the snapshot: their numbers were raised.
async fn raised_keys(database: &Database) -> Result<HashSet<Vec<u8>>> {
    let keys = sqlx::query_scalar("SELECT message_key FROM outbox_key_sequence");
    let keys: Vec<Vec<u8>> = keys.fetch_all(&mut database.plain().await?).await?;
    Ok(keys.into_iter().collect())
}

/// Changes an entry to the numbers of a sequenced message that was committed after the restore.
fn renumber(entry: &mut Entry, raised: &HashSet<Vec<u8>>, epoch: u64) {
    let (Some(sequence), Some(key)) = (entry.sequence, &entry.contents.key) else { return };
    let margin = if raised.contains(key) { MARGIN } else { 0 };
    let headers = &mut entry.contents.headers;
    if let Some((_, number)) = headers.iter_mut().find(|(name, _)| name == SEQUENCE_HEADER) {
        *number = (sequence + margin).to_string();
        headers.push((EPOCH_HEADER.to_owned(), epoch.to_string()));
        headers.sort();
    }
}

/// The highest fences, and a service that takes leases. A holder with a number from before the restore still compares.
struct Fences {
    leases: Leases,
    highest: HashMap<&'static str, u64>,
}

impl Fences {
    fn new(database: &Database) -> Result<Self> {
        let options: MySqlConnectOptions = database.url_as(Account::Service)?.parse()?;
        Ok(Self { leases: Leases::new(options), highest: HashMap::new() })
    }

    /// Takes and releases leases.
    async fn give(&mut self, names: &[&'static str]) -> Result<()> {
        for name in names {
            let lease = self.leases.acquire(name, PATIENCE).await?;
            let fence = lease.fence();
            let highest = self.highest.entry(name).or_default();
            ensure!(fence > *highest, "the lease {name} has the fence {fence}, and had {highest}");
            *highest = fence;
            lease.release().await?;
        }
        Ok(())
    }
}
