//! V1: programs of the baseline beside those of this build, on the tables of the next release.

use std::path::Path;

use anyhow::{Result, ensure};
use futures_util::FutureExt as _;
use testkit::{
    accounts::Account,
    consume::Broker,
    database::Database,
    ledger::Outcome,
    load::Load,
    relay::{Relay, Settings},
    servers::{Flavor, until},
    upgrade,
};

use super::rolling_restart;
use crate::{
    arena::{Arena, PATIENCE},
    baseline::{Baseline, Service},
    consumer::{Consumers, Program},
    row::{Case, Row},
};

/// The number of relays, and of consumers, of each release.
const EACH: usize = 2;
/// The number of messages published before the next step.
const PROGRESS: f64 = 200.0;

pub(super) fn row() -> Row {
    let case =
        |flavor, broker| Case::new("up, down, up", move |arena| releases(arena, flavor).boxed()).on(flavor, broker);
    Row {
        id: "V1",
        fault: "upgrade, roll-back and upgrade: the baseline's programs and these, side by side",
        shows: "no loss, no duplicate; old programs start on the new tables",
        cases: vec![case(Flavor::MySql, Broker::Kafka), case(Flavor::MariaDb, Broker::RabbitMq)],
    }
}

/// The programs of both releases besides the arena's relays and consumers.
struct Releases {
    baseline: Baseline,
    old: Option<Service>,
    /// Each started service has its own keys.
    seed: u64,
}

async fn releases(arena: &mut Arena, flavor: Flavor) -> Result<()> {
    let baseline = Baseline::build(&arena.setup.relay).await?;
    move_to(arena, baseline.database(Database::create_empty(flavor).await?).await?).await?;
    arena.rate /= 2.0;
    let program = Program { path: baseline.consumer.clone(), arguments: Vec::new(), clock: None };
    arena.consumers = Some(Consumers::start(&program, &arena.topic, &arena.database, arena.sequence, EACH).await?);
    let mut releases = Releases { baseline, old: None, seed: 1 };
    releases.start_old(arena).await?;
    // Up: the tables first, under load; then new programs beside the old ones.
    upgrade::to_next(&arena.database).await?;
    arena.database.grant().await?;
    progress(arena).await?;
    releases.start_new(arena).await?;
    // Down: no new program runs, and the old ones start again.
    releases.stop_new(arena).await?;
    releases.stop_old(arena).await?;
    for _ in 0..EACH {
        arena.consumers()?.stop_newest().await?;
        arena.consumers()?.start_one()?;
    }
    releases.start_old(arena).await?;
    // Up again, to the end.
    releases.start_new(arena).await?;
    releases.stop_old(arena).await?;
    progress(arena).await
}

impl Releases {
    async fn start_old(&mut self, arena: &mut Arena) -> Result<()> {
        let relay = self.baseline.relay.clone();
        start_relays(arena, &relay, &arena.settings.clone())?;
        self.seed += 1;
        self.old = Some(self.baseline.service(&arena.database, arena.topic.name(), arena.rate, self.seed)?);
        progress(arena).await
    }

    async fn start_new(&mut self, arena: &mut Arena) -> Result<()> {
        let relay = arena.setup.relay.clone();
        start_relays(arena, &relay, &arena.settings.clone())?;
        let program = arena.setup.consumer.clone();
        for _ in 0..EACH {
            arena.consumers()?.start_one_of(&program)?;
        }
        self.seed += 1;
        let load = Load::standard(arena.topic.name(), arena.rate).payload(64..=arena.largest).seed(self.seed);
        arena.load = Some(load.start(&arena.producers, &arena.ledger).await?);
        progress(arena).await
    }

    /// Stops the programs that were started last.
    async fn stop_new(&mut self, arena: &mut Arena) -> Result<()> {
        let first = arena.relays.len() - EACH;
        for relay in arena.relays.split_off(first) {
            stop(arena, relay).await?;
        }
        for _ in 0..EACH {
            arena.consumers()?.stop_newest().await?;
        }
        arena.stop_load().await?;
        ensure!(arena.ledger.count(Outcome::Committed) > 0, "the new service has committed nothing");
        Ok(())
    }

    /// Stops the programs that were started first.
    async fn stop_old(&mut self, arena: &mut Arena) -> Result<()> {
        for relay in arena.relays.drain(..EACH).collect::<Vec<_>>() {
            stop(arena, relay).await?;
        }
        if let Some(service) = self.old.take() {
            service.stop(&arena.ledger).await?;
        }
        Ok(())
    }
}

fn start_relays(arena: &mut Arena, program: &Path, settings: &Settings) -> Result<()> {
    for _ in 0..EACH {
        arena.relays.push(arena.relay_of(program, settings)?);
    }
    Ok(())
}

async fn stop(arena: &mut Arena, relay: Relay) -> Result<()> {
    // Messages may be in flight. No relay claims any more where the last one stops.
    let in_flight = arena.database.number("SELECT COUNT(*) FROM outbox_claims").await? > 0;
    arena.struck(in_flight);
    rolling_restart::stop(arena, relay).await
}

/// Moves the case to this database.
async fn move_to(arena: &mut Arena, database: Database) -> Result<()> {
    let empty = std::mem::replace(&mut arena.database, database);
    (arena.producers, arena.inboxes) = (arena.database.clone(), arena.database.clone());
    // No claim may be taken over on a busy machine: no message may be sent twice.
    arena.settings = arena.settings.clone().patient().set("database", "url", arena.database.url_as(Account::Relay)?);
    empty.remove().await
}

/// Waits until every running relay has published another message, and all together a lot.
async fn progress(arena: &mut Arena) -> Result<()> {
    let mut before = Vec::new();
    for relay in &mut arena.relays {
        before.push(relay.metrics_within(PATIENCE).await?.sum("outbox_relay_published_messages_total"));
    }
    let total = arena.metric("outbox_relay_published_messages_total", "").await;
    for (relay, before) in arena.relays.iter_mut().zip(before) {
        let more = |metrics: &testkit::relay::Metrics| metrics.sum("outbox_relay_published_messages_total") > before;
        relay.wait_for_metrics(PATIENCE, "every relay to publish more", more).await?;
    }
    until(PATIENCE, "messages", || async {
        let now = arena.metric("outbox_relay_published_messages_total", "").await;
        ensure!(now > total + PROGRESS, "{now} are published, {total} were before");
        Ok(())
    })
    .await
}
