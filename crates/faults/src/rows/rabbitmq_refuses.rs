//! A4: RabbitMQ refuses messages to one exchange.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures_util::FutureExt as _;
use outbox_core::{Uuid, sqlx};
use testkit::{consume::Broker, ledger::Draft, load, servers::Flavor};

use super::between::progress;
use crate::{
    arena::{Arena, PATIENCE},
    row::{Case, Row},
};

/// The time limit to publish the neighbours that existed when the fault struck.
const NEIGHBOURS: Duration = Duration::from_secs(30);
/// Messages to the struck exchange, and the number that its queue takes before it refuses.
const GUILTY: usize = 500;
const ROOM: usize = 50;
const RELAYS: usize = 3;
/// The number of messages of one destination that a relay rejects.
const REJECTIONS: usize = 100;
/// Keys of the messages that a full queue refuses.
const KEYS: u64 = 25;

pub(super) fn row() -> Row {
    let mut cases = Vec::new();
    for flavor in [Flavor::MySql, Flavor::MariaDb] {
        cases.push(Case::new("exchange deleted", |arena| deleted(arena).boxed()).on(flavor, Broker::RabbitMq));
        let case = Case::new("nack storm", |arena| storm(arena).boxed()).on(flavor, Broker::RabbitMq);
        cases.push(if flavor == Flavor::MySql { case.short() } else { case });
    }
    Row {
        id: "A4",
        fault: "exchange deleted in the middle of a batch; nack storm (max-length, reject-publish)",
        shows: "neighbours finish within 30 s; what is refused for a while keeps its order",
        cases,
    }
}

/// An exchange beside the topic's, and a route to it.
async fn beside(arena: &mut Arena, room: Option<i32>) -> Result<String> {
    let name = arena.topic.beside(room).await?;
    arena.past_consumers = true;
    arena.settings = arena.settings.clone().first_route([
        ("topics", name.as_str()),
        ("sink", "rabbitmq"),
        ("exchange", name.as_str()),
        ("routing_key", "{topic}"),
    ]);
    Ok(name)
}

async fn commit(arena: &Arena, drafts: impl Iterator<Item = Draft>) -> Result<HashSet<Uuid>> {
    let drafts: Vec<Draft> = drafts.collect();
    load::commit(&arena.database, &arena.ledger, &drafts, |message| message).await?;
    Ok(drafts.iter().map(|draft| draft.id).collect())
}

fn guilty(topic: &str) -> impl Iterator<Item = Draft> {
    (0..GUILTY).map(move |number| Draft::new(topic, number.to_string()))
}

async fn dead(arena: &Arena) -> Result<HashSet<Uuid>> {
    let sql = "SELECT message_id FROM outbox_dead JOIN outbox_messages USING (id)";
    let ids: Vec<Vec<u8>> = sqlx::query_scalar(sql).fetch_all(&mut arena.database.connect_as_admin().await?).await?;
    ids.iter().map(|id| Ok(Uuid::from_slice(id)?)).collect()
}

/// The number of messages of this topic that are neither sent nor dead.
fn left(topic: &str) -> String {
    let of = |table| format!("(SELECT COUNT(*) FROM {table} JOIN outbox_messages USING (id) WHERE topic = '{topic}')");
    format!("SELECT {} + {}", of("outbox_pending"), of("outbox_delayed"))
}

/// Waits until every message that is queued now, but not for this topic, is published.
async fn neighbours(arena: &mut Arena, topic: &str) -> Result<()> {
    let newest = arena.database.number("SELECT CAST(MAX(id) AS SIGNED) FROM outbox_messages").await?;
    let start = Instant::now();
    for table in ["outbox_pending", "outbox_delayed"] {
        let none = format!(
            "SELECT COUNT(*) = 0 FROM {table} JOIN outbox_messages USING (id) WHERE id <= {newest} \
             AND topic <> '{topic}'"
        );
        arena.database.wait_for(PATIENCE, &none).await?;
    }
    arena.counts.recovered(start.elapsed());
    arena.within("the neighbours", start.elapsed(), NEIGHBOURS);
    Ok(())
}

async fn deleted(arena: &mut Arena) -> Result<()> {
    let exchange = beside(arena, None).await?;
    arena.start_relays(RELAYS)?;
    arena.start_load().await?;
    arena.working().await?;
    let mut its = commit(arena, guilty(&exchange)).await?;
    arena.strike().await?;
    arena.topic.delete_exchange(&exchange).await?;
    its.extend(commit(arena, guilty(&exchange)).await?);
    neighbours(arena, &exchange).await?;
    progress(arena, 50.0).await?;
    arena.database.wait_for(PATIENCE, "SELECT COUNT(*) > 0 FROM outbox_dead").await?;
    arena.topic.bring_back(&exchange).await?;
    arena.database.wait_for(PATIENCE, &format!("SELECT ({}) = 0", left(&exchange))).await?;
    let dead = dead(arena).await?;
    ensure!(dead.is_subset(&its), "a neighbour is dead");
    ensure!(dead.len() <= RELAYS * REJECTIONS, "{} messages are dead", dead.len());
    // A deleted exchange ends the channel: messages in flight on it are sent again. Messages that had arrived before
    // the deletion, and were refused when sent again, count as rejected.
    arena.complete = false;
    arena.expected = arena.expected.clone().dead(dead);
    arena.duplicates_are_announced();
    Ok(())
}

/// Messages that a full queue refuses are tried again until there is room. They are never dead before their attempts
/// are spent.
async fn storm(arena: &mut Arena) -> Result<()> {
    let exchange = beside(arena, Some(i32::try_from(ROOM)?)).await?;
    arena.settings = arena.settings.clone().set("retry", "max_attempts", 1000);
    arena.start_relays(3)?;
    arena.start_load().await?;
    arena.working().await?;
    arena.strike().await?;
    // Refused messages hold up later ones of their key.
    let keyed = |(draft, number): (Draft, u64)| draft.key(format!("guilty-{}", number % KEYS), 1 + number / KEYS);
    commit(arena, guilty(&exchange).zip(0..).map(keyed)).await?;
    arena.database.wait_for(PATIENCE, "SELECT COUNT(*) > 0 FROM outbox_delayed").await?;
    neighbours(arena, &exchange).await?;
    progress(arena, 50.0).await?;
    // Reading makes room.
    let left = left(&exchange);
    let patience = Instant::now() + PATIENCE;
    while arena.database.number(&left).await? > 0 {
        ensure!(Instant::now() < patience, "the full queue was not drained");
        arena.topic.read_beside().await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    arena.duplicates_are_announced();
    Ok(())
}
