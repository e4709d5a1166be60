//! O1: an operator orders at random, while relays die and a topic is missing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::FutureExt as _;
use outbox_core::sqlx;
use rand::{RngExt as _, seq::SliceRandom as _};
use testkit::{
    accounts::Account,
    consume::Broker,
    ledger::Draft,
    load,
    relay::Client,
    servers::{Flavor, until},
};

use super::between::progress;
use crate::{
    arena::{Arena, PATIENCE},
    row::{Case, Row},
};

/// Lanes of the load and of the messages that wait for the topic.
const LANES: u16 = 3;
/// The lane in which dead messages are released: no order is promised to its keys, because later messages go first.
const RELEASED: u16 = 2;
/// Keys of each lane whose first message the missing topic refuses, and messages of each key.
const KEYS: u64 = 7;
const EACH: u64 = 20;
/// The orders. `TOPIC` is the missing topic, `MAIN` that of the load; the others are chosen at random.
const ORDERS: [&str; 14] = [
    "pause --lane LANE --for 2s",
    "pause --sink kafka --for 1s",
    "pause --destination kafka/TOPIC --for 3s",
    "pause --instance INSTANCE --for 2s",
    "resume --lane LANE",
    "resume --sink kafka",
    "dead retry --topic TOPIC --yes",
    "dead retry --reason unroutable --rate 20 --yes",
    "dead release --topic TOPIC --lane 2 --yes",
    "dead discard --topic TOPIC --lane LANE --yes",
    "delayed retry --topic TOPIC --yes",
    "delayed retry --reason paused --yes",
    "replay --topic MAIN --since 3s --rate 300 --yes",
    "replay MESSAGE --yes",
];

pub(super) fn row() -> Row {
    let case = |flavor| {
        let case = Case::new("at random", |arena| orders(arena).boxed()).on(flavor, Broker::Kafka);
        case.told("Paused by alice")
    };
    Row {
        id: "O1",
        fault: "pauses, drains, retries, releases, discards and replays in three lanes, and kill -9 of relays, at \
                random",
        shows: "only what a killed relay held arrives twice, or twice in one replay; order holds, also in a replay; \
                what is discarded is counted; the audit has every order once; each job ends",
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
    (arena.past_consumers, arena.lanes) = (true, LANES);
    arena.start().await?;
    block(arena, &topic).await?;
    let client = Client::new(&arena.setup.relay, arena.database.url_as(Account::Operator)?);
    let mut operator = Operator { client, topic, given: 0, done: 0 };
    let start = Instant::now();
    let time = arena.lasting(40_000..60_000, 12_000);
    let mut due = Vec::new();
    // On a slow machine few orders fit into the time: it goes on until the case shows what it is for.
    while start.elapsed() < time || start.elapsed() < PATIENCE && !has_shown(arena).await? {
        if due.is_empty() {
            due = ORDERS.to_vec();
            due.shuffle(&mut arena.random);
        }
        operator.order_at_random(arena, due.pop().unwrap_or_default()).await?;
        if arena.random.random_ratio(1, 4) {
            let victim = arena.relays.swap_remove(0);
            let death = arena.kill(victim).await?;
            arena.may_be_sent_twice(death.held);
            arena.start_relays(1)?;
        }
        tokio::time::sleep(Duration::from_millis(arena.random.random_range(0..1_000))).await;
    }
    operator.order("pause --lane 1").await?;
    arena.told().await?;
    drain(arena, &mut operator).await?;
    let shown = has_shown(arena).await?;
    arena.witness("each kind of job", shown);
    end(arena, &mut operator).await
}

/// Commits messages for the missing topic, and waits until one is dead and another one is sent.
async fn block(arena: &mut Arena, topic: &str) -> Result<()> {
    for number in 1..=EACH {
        for lane in 0..LANES {
            let draft = |key: u64| match (Draft::new(topic, "x"), format!("blocked-{lane}-{key}")) {
                (draft, key) if lane == RELEASED => draft.unordered_key(key),
                (draft, key) => draft.key(key, number),
            };
            let drafts: Vec<_> = (0..KEYS).map(draft).collect();
            load::commit(&arena.database, &arena.ledger, &drafts, |message| message.lane(lane)).await?;
            arena.orders.discardable.extend(drafts.iter().map(|draft| draft.id));
        }
    }
    arena.database.wait_for(PATIENCE, "SELECT COUNT(*) FROM outbox_dead").await?;
    arena.database.wait_for(PATIENCE, "SELECT COUNT(*) FROM outbox_sent WHERE message_ids <> '[]'").await
}

/// Kinds of jobs that have changed a message.
const KINDS: &str = "SELECT COUNT(DISTINCT action) FROM outbox_jobs WHERE done > 0";

/// Whether each kind of job was carried out, and a relay was killed with messages in flight.
async fn has_shown(arena: &Arena) -> Result<bool> {
    Ok(arena.counts.in_flight > 0 && arena.database.number(KINDS).await? == 5)
}

/// Drains a relay, and kills it: it holds nothing.
async fn drain(arena: &mut Arena, operator: &mut Operator) -> Result<()> {
    let relay = arena.relays.swap_remove(0);
    let name = operator.instance(|name| name.contains(&format!("-{}/", relay.pid()))).await?;
    operator.order(&format!("pause --instance {name}")).await?;
    until(PATIENCE, "a drained relay", || async {
        let instances = operator.client.json("instances", &[]).await?;
        let is_drained = |it: &serde_json::Value| field(it, "instance") == name && field(it, "state") == "drained";
        ensure!(instances.as_array().is_some_and(|list| list.iter().any(is_drained)), "{instances}");
        Ok(())
    })
    .await?;
    let death = arena.kill(relay).await?;
    ensure!(death.held.is_empty(), "a drained relay held {} messages", death.held.len());
    arena.start_relays(1)
}

/// Ends the faults, waits until everything is sent, and tells the judge what was ordered.
async fn end(arena: &mut Arena, operator: &mut Operator) -> Result<()> {
    arena.topic.create_beside(&operator.topic).await?;
    for what in ["--lane 0", "--lane 1", "--lane 2", "--sink kafka"] {
        operator.order(&format!("resume {what}")).await?;
    }
    // A message may die again before the relays know the topic.
    let deadline = Instant::now() + PATIENCE;
    while arena.database.number(&format!("SELECT {UNSENT}")).await? > 0 {
        ensure!(Instant::now() < deadline, "what waited for the topic is not sent");
        operator.order("dead retry --all --yes").await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    progress(arena, 50.0).await?;
    arena.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_jobs WHERE ended_at IS NULL").await?;
    for (what, sql) in AUDITED {
        let audited = arena.database.number(sql).await?;
        ensure!(audited == operator.done, "{} orders, {audited} {what}", operator.done);
    }
    ensure!(arena.database.number(UNNAMED).await? == 0, "a job is not in the audit with its number of messages");
    let discarded = "SELECT CAST(COALESCE(SUM(done), 0) AS SIGNED) FROM outbox_jobs WHERE action = 'discard'";
    arena.orders.discarded = arena.database.number(discarded).await?.unsigned_abs();
    let replays = "SELECT job_id, done FROM outbox_jobs WHERE action = 'replay' AND done > 0";
    let replays: Vec<(u64, u64)> = sqlx::query_as(replays).fetch_all(&mut arena.database.plain().await?).await?;
    arena.orders.replayed = replays.into_iter().map(|(job, messages)| (job.to_string(), messages)).collect();
    Ok(())
}

/// Rows of the audit, and orders that it has. Each order has a reason of its own.
const AUDITED: [(&str, &str); 2] = [
    ("rows in the audit", "SELECT COUNT(*) FROM outbox_audit"),
    ("of them in the audit", "SELECT COUNT(DISTINCT reason) FROM outbox_audit"),
];
/// Jobs whose order is not in the audit, or without the number of messages.
const UNNAMED: &str = "SELECT COUNT(*) FROM outbox_jobs j LEFT JOIN outbox_audit a \
    ON a.job_id = j.job_id AND a.action = j.action WHERE a.messages IS NULL";

/// Messages of the missing topic that are not sent.
const UNSENT: &str = "(SELECT COUNT(*) FROM outbox_dead) + \
    (SELECT COUNT(*) FROM outbox_delayed d JOIN outbox_messages m ON m.id = d.id WHERE m.topic LIKE 'missing-%')";

/// An operator, and the numbers of orders that were given and that had something to do.
struct Operator {
    client: Client,
    topic: String,
    given: i64,
    done: i64,
}

impl Operator {
    async fn order_at_random(&mut self, arena: &mut Arena, words: &str) -> Result<()> {
        let lane = arena.random.random_range(0..LANES).to_string();
        let mut words = words.replace("LANE", &lane).replace("TOPIC", &self.topic).replace("MAIN", arena.topic.name());
        if words.contains("MESSAGE") {
            // A claim of which no message was sent has an empty receipt.
            let newest = "SELECT CAST(JSON_EXTRACT(message_ids, '$[0]') AS SIGNED) FROM outbox_sent \
                          WHERE message_ids <> '[]' ORDER BY receipt_id DESC LIMIT 1";
            words = words.replace("MESSAGE", &arena.database.number(newest).await?.to_string());
        }
        if words.contains("INSTANCE") {
            words = words.replace("INSTANCE", &self.instance(|_| true).await?);
        }
        self.order(&words).await
    }

    /// Gives an order, with a reason of its own.
    async fn order(&mut self, words: &str) -> Result<()> {
        self.given += 1;
        let output = self.client.run(words, &["--because", &format!("order {}", self.given)]).await?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() || text.contains("is not paused"), "{words}: {text}");
        self.done += i64::from(output.status.success() && !text.contains("nothing to do"));
        Ok(())
    }

    /// Waits for a live relay with a name of this kind; returns the name. Of several, it is the one that was seen last.
    async fn instance(&self, is_wanted: impl Fn(&str) -> bool) -> Result<String> {
        until(PATIENCE, "a live relay", || async {
            let list = self.client.json("instances", &[]).await?;
            let live = list.as_array().into_iter().flatten().filter(|it| field(it, "state") != "gone");
            let name = live.map(|it| field(it, "instance")).find(|name| is_wanted(name));
            name.map(str::to_owned).with_context(|| list.to_string())
        })
        .await
    }
}

fn field<'a>(row: &'a serde_json::Value, name: &str) -> &'a str {
    row.get(name).and_then(serde_json::Value::as_str).unwrap_or_default()
}
