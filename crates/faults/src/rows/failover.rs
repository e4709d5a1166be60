//! DR2: the primary dies, and its replica takes its place under the same name.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures_util::FutureExt as _;
use testkit::{
    accounts::Account,
    consume::Broker,
    database::Database,
    ledger::Outcome,
    proxy::Proxy,
    servers::{Flavor, Replica, Replication, acknowledged, until},
};

use super::between::{keep, progress};
use crate::{
    arena::{Arena, PATIENCE},
    row::{Case, Row},
};

/// The time limit for the relays to publish again after the name means the replica.
const RECOVERY: Duration = Duration::from_secs(20);
/// The minimum of committed messages that the replica does not get.
const BEHIND: usize = 100;

pub(super) fn row() -> Row {
    let mut cases = Vec::new();
    for (flavor, broker) in [(Flavor::MySql, Broker::Kafka), (Flavor::MariaDb, Broker::RabbitMq)] {
        let own = |case: Case| case.on(flavor, broker).own_database_with(flavor.primary());
        let semi = own(Case::new("semi-synchronous", move |arena| semi_synchronous(arena, flavor).boxed()));
        cases.push(if flavor == Flavor::MySql { semi.short() } else { semi });
        cases.push(own(Case::new("asynchronous", move |arena| asynchronous(arena, flavor).boxed())));
    }
    Row {
        id: "DR2",
        fault: "kill -9 the primary under load, promote its replica",
        shows: "semi-synchronous: nothing lost, no order broken; asynchronous: what the server lost is lost, and \
                nothing else",
        cases,
    }
}

async fn semi_synchronous(arena: &mut Arena, flavor: Flavor) -> Result<()> {
    let replica = Replica::of(arena.ground.mysql()?, flavor, Replication::SemiSynchronous).await?;
    let name = one_name(arena).await?;
    arena.duplicates_are_announced();
    arena.start().await?;
    arena.strike().await?;
    acknowledged(arena.ground.mysql()?, flavor).await?;
    arena.ground.mysql()?.kill()?;
    let promoted = replica.promote().await?;
    name.retarget(&promoted.url())?;
    arena.ground.mysql = Some(promoted);
    arena.recovered(Instant::now(), RECOVERY).await
}

/// The relays stop before the name means a server that lacks rows they have seen, as the deployment page says.
/// Consumers have their tables elsewhere: here the judge is the consumer.
async fn asynchronous(arena: &mut Arena, flavor: Flavor) -> Result<()> {
    let replica = Replica::of(arena.ground.mysql()?, flavor, Replication::Asynchronous).await?;
    let name = one_name(arena).await?;
    arena.duplicates_are_announced();
    arena.past_consumers = true;
    arena.start_relays(3)?;
    arena.start_producers().await?;
    arena.working().await?;
    arena.enough().await?;
    replica.fall_behind().await?;
    let before = arena.ledger.count(Outcome::Committed);
    until(PATIENCE, "messages that the replica lacks", || async {
        let more = arena.ledger.count(Outcome::Committed) - before;
        ensure!(more >= BEHIND, "{more} messages");
        Ok(())
    })
    .await?;
    progress(arena, 50.0).await?;
    arena.strike().await?;
    arena.ground.mysql()?.kill()?;
    for relay in std::mem::take(&mut arena.relays) {
        arena.retire(&relay).await?;
        relay.kill()?;
        arena.pages.push(relay.log()?);
    }
    let promoted = replica.promote().await?;
    let database = arena.database.on(&promoted)?;
    lost(arena, &database).await?;
    name.retarget(&promoted.url())?;
    arena.ground.mysql = Some(promoted);
    arena.start_relays(3)?;
    arena.working().await
}

/// Relays, services and consumers know only this name.
async fn one_name(arena: &mut Arena) -> Result<Arc<Proxy>> {
    let proxy = Proxy::start(arena.database.url()).await?;
    arena.database = Database::at(proxy.address());
    (arena.producers, arena.inboxes) = (arena.database.clone(), arena.database.clone());
    arena.settings = arena.settings.clone().set("database", "url", arena.database.url_as(Account::Relay)?);
    Ok(keep(arena, proxy))
}

/// Names to the judge the messages that the server lost, and those it will send again because it lacks their marks.
async fn lost(arena: &mut Arena, promoted: &Database) -> Result<()> {
    let tables = promoted.tables().await?;
    let mut entries = arena.ledger.entries();
    entries.retain(|entry| entry.outcome != Outcome::RolledBack && !tables.messages.contains(&entry.id));
    let committed = entries.iter().filter(|entry| entry.outcome == Outcome::Committed).count();
    arena.lost = entries.iter().map(|entry| entry.id).collect();
    let arrived: HashSet<_> = arena.topic.read().await?.iter().map(|arrival| arrival.id).collect();
    let unsent = tables.pending.union(&tables.delayed).copied();
    arena.sent_again = unsent.filter(|id| arrived.contains(id)).collect();
    let again = !arena.sent_again.is_empty();
    arena.witness("a committed message that the server lost", committed > 0);
    arena.witness("a message that was sent and is not marked", again);
    Ok(())
}
