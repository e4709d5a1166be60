//! Q1 and Q2: one key with a long queue, busy or blocked, while relays die.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::FutureExt as _;
use outbox_core::key_hash;
use testkit::{consume::Broker, ledger::Draft, load, servers::Flavor};

use super::between::progress;
use crate::{
    arena::{Arena, PATIENCE, Pace},
    row::{Case, Row},
};

/// The key.
const KEY: &str = "long";
/// Relays that die while the queue drains.
const KILLS: usize = 3;
/// The time limit to publish the messages of other keys that were queued at one moment.
const OTHERS: Duration = Duration::from_secs(30);

pub(super) fn busy() -> Row {
    let case = |flavor| Case::new("busy", |arena| busy_key(arena).boxed()).on(flavor, Broker::RabbitMq);
    Row {
        id: "Q1",
        fault: "kill -9 relays while one key has thousands of messages (RabbitMQ)",
        shows: "other keys finish within 30 s, before the busy one; its queue goes on in order",
        cases: vec![case(Flavor::MySql).short(), case(Flavor::MariaDb)],
    }
}

pub(super) fn blocked() -> Row {
    let case = |flavor, broker| {
        let case = Case::new("blocked", |arena| blocked_key(arena).boxed()).on(flavor, broker);
        case.told("1 is dead.")
    };
    Row {
        id: "Q2",
        fault: "kill -9 relays while thousands of messages wait behind a dead one, and after its release",
        shows: "no message of the key is sent before the release, and all are afterwards, in order",
        cases: vec![case(Flavor::MySql, Broker::Kafka).short(), case(Flavor::MariaDb, Broker::RabbitMq)],
    }
}

/// Commits the messages of the key; returns their number.
async fn commit(arena: &Arena) -> Result<u64> {
    let count = if arena.setup.pace == Pace::Full { 10_000 } else { 2_000 };
    let topic = arena.topic.name();
    let drafts: Vec<Draft> = (1..=count).map(|number| Draft::new(topic, number.to_string()).key(KEY, number)).collect();
    for chunk in drafts.chunks(1_000) {
        load::commit(&arena.database, &arena.ledger, chunk, |message| message).await?;
    }
    Ok(count)
}

/// The hash of the key.
fn hash(arena: &Arena) -> u64 {
    key_hash(arena.topic.name(), Some(KEY.as_bytes()))
}

async fn kill_and_replace(arena: &mut Arena) -> Result<()> {
    arena.strike().await?;
    let victim = arena.relays.swap_remove(0);
    let death = arena.kill(victim).await?;
    arena.may_be_sent_twice(death.held);
    arena.start_relays(1)
}

async fn busy_key(arena: &mut Arena) -> Result<()> {
    arena.start().await?;
    commit(arena).await?;
    for _ in 0..KILLS {
        kill_and_replace(arena).await?;
        progress(arena, 50.0).await?;
    }
    let newest = arena.database.number("SELECT CAST(MAX(id) AS SIGNED) FROM outbox_messages").await?;
    let start = Instant::now();
    let hash = hash(arena);
    let others = format!("SELECT COUNT(*) = 0 FROM outbox_pending WHERE id <= {newest} AND key_hash <> {hash}");
    arena.database.wait_for(PATIENCE, &others).await?;
    arena.within("the other keys", start.elapsed(), OTHERS);
    let left = format!("SELECT COUNT(*) FROM outbox_delayed WHERE key_hash = {hash}");
    let left = arena.database.number(&left).await?;
    arena.witness("the busy key had messages left when the others were sent", left > 0);
    Ok(())
}

async fn blocked_key(arena: &mut Arena) -> Result<()> {
    let hash = hash(arena);
    let bury = format!(
        "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, owner) \
         VALUES (0, 0, {hash}, 0, 1, UTC_TIMESTAMP(6), 1, 'rejected', 'test')"
    );
    arena.database.execute(&bury).await?;
    arena.start().await?;
    let behind = commit(arena).await?;
    kill_and_replace(arena).await?;
    let queued = |is| format!("SELECT COUNT(*) {is} {behind} FROM outbox_delayed WHERE key_hash = {hash}");
    arena.database.wait_for(PATIENCE, &queued("=")).await?;
    progress(arena, 50.0).await?;
    arena.told().await?;
    ensure!(arena.database.number(&queued("=")).await? == 1, "messages were sent behind the dead one");
    arena.database.execute("DELETE FROM outbox_dead WHERE id = 0").await?;
    arena.database.wait_for(PATIENCE, &queued("<")).await?;
    for _ in 1..KILLS {
        kill_and_replace(arena).await?;
    }
    Ok(())
}
