//! K2: Kafka does not confirm messages, or does not take them.

use std::time::Instant;

use anyhow::{Result, ensure};
use futures_util::FutureExt as _;
use rand::RngExt as _;
use testkit::{
    consume::{Broker, Topic},
    ledger::Draft,
    load,
    proxy::{Cut, Direction},
};

use super::{
    between::{before_the_broker, counted, progress},
    broker_down::recovery,
};
use crate::{
    arena::{Arena, PATIENCE},
    row::{Case, Row},
};

/// One batch: the possible cost of a lost acknowledgement.
const BATCH: usize = 1000;
/// Guilty messages of a case.
const GUILTY: usize = 10;

pub(super) fn row() -> Row {
    Row {
        id: "K2",
        fault: "acknowledgement cut; topic missing; message larger than the broker takes; local queue full",
        shows: "duplicates at most of one batch; only the guilty message is dead; no busy loop",
        cases: vec![
            Case::new("acknowledgement cut", |arena| unacknowledged(arena).boxed()).own_broker(),
            Case::new("connections break", |arena| broken(arena).boxed()).own_broker(),
            Case::new("topic missing", |arena| missing(arena).boxed()),
            Case::new("message too large", |arena| too_large(arena).boxed()).short(),
            Case::new("local queue full", |arena| full(arena).boxed()),
        ],
    }
}

async fn unacknowledged(arena: &mut Arena) -> Result<()> {
    let proxy = before_the_broker(arena).await?;
    arena.start_relays(3)?;
    arena.start_load().await?;
    arena.working().await?;
    for _ in 0..5 {
        let cut = proxy.counts().replies_cut;
        arena.strike().await?;
        // A request begins with its length and its kind; the kind of a produce request is 0.
        proxy.cut_replies(1, |request| request.get(4..6) == Some(&[0, 0]));
        counted(&proxy, "a reply to be cut", |counts| counts.replies_cut > cut).await?;
        progress(arena, 50.0).await?;
    }
    arena.expected = arena.expected.clone().duplicates(BATCH);
    no_busy_loop(arena, 2.0).await
}

/// Connections break at random positions, in each direction.
pub(super) async fn broken(arena: &mut Arena) -> Result<()> {
    let proxy = before_the_broker(arena).await?;
    arena.start_relays(3)?;
    arena.start_load().await?;
    arena.working().await?;
    // RabbitMQ answers with a few bytes.
    let bytes = if arena.topic.broker() == Broker::Kafka { 20_000 } else { 5_000 };
    for direction in Direction::BOTH {
        let cut = proxy.counts().cut;
        arena.strike().await?;
        proxy.cut(direction, Cut::Within { bytes, seed: arena.random.random() });
        counted(&proxy, "connections to break", |counts| counts.cut >= cut + 10).await?;
        proxy.heal();
        let bound = recovery(arena);
        arena.recovered(Instant::now(), bound).await?;
    }
    arena.duplicates_are_announced();
    Ok(())
}

/// Commits the guilty messages among the load, and waits until they are dead.
async fn dead(arena: &mut Arena, guilty: Vec<Draft>) -> Result<()> {
    arena.start_relays(3)?;
    arena.start_load().await?;
    arena.working().await?;
    for draft in &guilty {
        arena.strike().await?;
        load::commit(&arena.database, &arena.ledger, std::slice::from_ref(draft), |message| message).await?;
    }
    let all = format!("SELECT COUNT(*) = {} FROM outbox_dead", guilty.len());
    arena.database.wait_for(PATIENCE, &all).await?;
    progress(arena, 50.0).await?;
    arena.expected = arena.expected.clone().dead(guilty.iter().map(|draft| draft.id));
    no_busy_loop(arena, 2.0).await
}

async fn missing(arena: &mut Arena) -> Result<()> {
    let nowhere = format!("missing-{}", arena.topic.name());
    dead(arena, (0..GUILTY).map(|number| Draft::new(&nowhere, number.to_string())).collect()).await
}

/// The neighbours go to the same topic, in the same requests.
async fn too_large(arena: &mut Arena) -> Result<()> {
    // Above the largest payload of the load.
    const LIMIT: usize = 100_000;
    std::mem::replace(&mut arena.topic, Topic::create_narrow(LIMIT).await?).remove().await?;
    // As the sink's documentation demands: requests that are too large without any guilty message are no fault.
    arena.settings = arena.settings.clone().kafka_property("batch.size", "90000");
    let large = |_| Draft::new(arena.topic.name(), vec![0; LIMIT + 1]);
    dead(arena, (0..GUILTY).map(large).collect()).await?;
    arena.duplicates_are_announced();
    Ok(())
}

async fn full(arena: &mut Arena) -> Result<()> {
    // Messages that wait for a place can be late, and are sent again.
    arena.duplicates_are_announced();
    arena.settings = arena.settings.clone().kafka_property("queue.buffering.max.messages", "50");
    let drafts: Vec<Draft> = (0..5000).map(|number| Draft::new(arena.topic.name(), number.to_string())).collect();
    load::commit(&arena.database, &arena.ledger, &drafts, |message| message).await?;
    arena.start_relays(3)?;
    arena.start_load().await?;
    arena.strike().await?;
    progress(arena, 5000.0).await?;
    // A message also counts if librdkafka's full queue does not take it within the deadline.
    no_busy_loop(arena, 10.0).await
}

/// Checks that no message is tried in a loop: at most this number of attempts a message, on average.
async fn no_busy_loop(arena: &Arena, each: f64) -> Result<()> {
    let attempts = arena.metric("outbox_relay_publish_attempts_total", "").await;
    let published = arena.metric("outbox_relay_published_messages_total", "").await;
    ensure!(attempts <= 1000.0 + each * published, "{attempts} attempts for {published} messages");
    Ok(())
}
