//! O1: an operator orders at random, while relays die and a topic is missing.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::FutureExt as _;
use rand::{RngExt as _, seq::IndexedRandom as _};
use testkit::{accounts::Account, consume::Broker, ledger::Draft, load, relay::Client, servers::Flavor};

use super::between::progress;
use crate::{
    arena::{Arena, PATIENCE},
    row::{Case, Row},
};

/// Keys whose first message the missing topic refuses, and messages of each.
const KEYS: u64 = 20;
const EACH: u64 = 20;
/// The orders. `TOPIC` is the missing one.
const ORDERS: [&str; 9] = [
    "pause --lane 0 --for 2s",
    "pause --sink kafka --for 1s",
    "pause --destination kafka/TOPIC --for 3s",
    "resume --lane 0",
    "resume --sink kafka",
    "dead retry --topic TOPIC --yes",
    "dead retry --reason unroutable --rate 20 --yes",
    "delayed retry --topic TOPIC --yes",
    "delayed retry --reason paused --yes",
];

pub(super) fn row() -> Row {
    let case = |flavor| Case::new("at random", |arena| orders(arena).boxed()).on(flavor, Broker::Kafka);
    Row {
        id: "O1",
        fault: "pauses, retries of dead and delayed messages, and kill -9 of relays, at random",
        shows: "only what a killed relay held arrives twice; order holds; the audit has every order; each job ends",
        cases: vec![case(Flavor::MySql).short(), case(Flavor::MariaDb)],
    }
}

async fn orders(arena: &mut Arena) -> Result<()> {
    let topic = format!("missing-{}", arena.topic.name());
    arena.settings = arena.settings.clone().first_route([
        ("topics", topic.as_str()),
        ("sink", "kafka"),
        ("topic", "{topic}"),
        ("after_dead", "block"),
    ]);
    arena.past_consumers = true;
    arena.start().await?;
    for number in 1..=EACH {
        let draft = |key| Draft::new(&topic, "x").key(format!("blocked-{key}"), number);
        let drafts: Vec<_> = (0..KEYS).map(draft).collect();
        load::commit(&arena.database, &arena.ledger, &drafts, |message| message).await?;
    }
    arena.database.wait_for(PATIENCE, "SELECT COUNT(*) FROM outbox_dead").await?;
    let operator = Client::new(&arena.setup.relay, arena.database.url_as(Account::Operator)?);
    let mut done = 0;
    let (start, time) = (Instant::now(), arena.lasting(40_000..60_000, 12_000));
    // On a slow machine few orders fit into the time: it goes on until the case shows what it is for.
    while start.elapsed() < time || start.elapsed() < PATIENCE && !has_shown(arena).await? {
        let words = ORDERS.choose(&mut arena.random).copied().unwrap_or_default().replace("TOPIC", &topic);
        done += i64::from(ordered(&operator, &words).await?);
        if arena.random.random_ratio(1, 4) {
            let victim = arena.relays.swap_remove(0);
            let death = arena.kill(victim).await?;
            arena.may_be_sent_twice(death.held);
            arena.start_relays(1)?;
        }
        tokio::time::sleep(Duration::from_millis(arena.random.random_range(0..1_000))).await;
    }
    arena.topic.create_beside(&topic).await?;
    for what in ["--lane 0", "--sink kafka"] {
        done += i64::from(ordered(&operator, &format!("resume {what}")).await?);
    }
    // A message may die again before the relays know the topic.
    let deadline = Instant::now() + PATIENCE;
    while arena.database.number(&format!("SELECT {UNSENT}")).await? > 0 {
        ensure!(Instant::now() < deadline, "what waited for the topic is not sent");
        done += i64::from(ordered(&operator, "dead retry --all --yes").await?);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    progress(arena, 50.0).await?;
    arena.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_jobs WHERE ended_at IS NULL").await?;
    let audited = arena.database.number("SELECT COUNT(*) FROM outbox_audit").await?;
    ensure!(audited == done, "{done} orders, {audited} in the audit");
    arena.witness("several jobs", arena.database.number(JOBS).await? > 2);
    Ok(())
}

/// Jobs that have changed a message.
const JOBS: &str = "SELECT COUNT(*) FROM outbox_jobs WHERE done > 0";

/// Whether several jobs were carried out, and a relay was killed with messages in flight.
async fn has_shown(arena: &Arena) -> Result<bool> {
    Ok(arena.counts.in_flight > 0 && arena.database.number(JOBS).await? > 2)
}

/// Messages of the missing topic that are not sent.
const UNSENT: &str = "(SELECT COUNT(*) FROM outbox_dead) + \
    (SELECT COUNT(*) FROM outbox_delayed d JOIN outbox_messages m ON m.id = d.id WHERE m.topic LIKE 'missing-%')";

/// Gives an order; returns whether there was something to do.
async fn ordered(operator: &Client, words: &str) -> Result<bool> {
    let output = operator.run(words, &["--because", "a test"]).await?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() || text.contains("is not paused"), "{words}: {text}");
    Ok(output.status.success() && !text.contains("nothing to do"))
}
