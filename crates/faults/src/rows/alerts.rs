//! L1: each alert fires for its fault, no other does, and it ends after the repair. C2: what the canary alone shows.
//!
//! The times of the rules are divided, those of the relays are not: they count the queue every 8 s, call a lane stalled
//! after a minute and a relay gone after half of one.

use std::{
    future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use futures_util::FutureExt as _;
use outbox_consumer::{Failure, Handler, handler_fn, kafka, prometheus::Registry, rabbitmq};
use outbox_core::sqlx::{self, MySqlPool};
use testkit::{
    accounts::Account,
    consume::{Broker, Topic},
    database::Database,
    ledger::Draft,
    load,
    proxy::Direction,
    relay::{Client, Metrics},
    servers::{Flavor, serve},
};

use super::{between::before_the_database, relay_frozen};
use crate::{
    arena::{Arena, LEASE, PATIENCE},
    row::{Case, Row},
    watch::{Due, Watch},
};

/// Messages that come late through a fault burn the budget: what takes longer than 5 s counts.
pub(super) const LATE: [&str; 2] = ["OutboxBudgetBurnsFast", "OutboxBudgetBurnsSlowly"];

pub(super) fn row() -> Row {
    // Messages wait for the whole fault, which is longer than the limit of the lag. With the real times the lane is
    // stalled, too.
    let killed = || {
        let case = Case::new("broker killed", |arena| broker(arena).boxed());
        case.may_raise(&[LATE[0], LATE[1], "OutboxLagHigh", "OutboxStalled"])
    };
    Row {
        id: "L1",
        fault: "a fault for each alert that a fault raises within minutes, with Prometheus beside it",
        shows: "the alert fires in time, no other does, and it ends after the repair",
        cases: vec![
            Case::new("no fault", |arena| nothing(arena).boxed()),
            Case::new("no relay", |arena| no_relay(arena).boxed()).may_raise(&LATE),
            Case::new("one relay of two", |arena| one_relay(arena).boxed()).may_raise(&LATE),
            Case::new("a frozen relay", |arena| frozen(arena).boxed()).may_raise(&LATE),
            Case::new("database unreachable", |arena| database(arena).boxed()).may_raise(&LATE),
            Case::new("a locked table", |arena| locked(arena).boxed()),
            killed().own_broker(),
            killed().on(Flavor::MariaDb, Broker::RabbitMq).own_broker(),
            Case::new("a missing topic", |arena| missing(arena).boxed()).may_raise(&LATE),
            Case::new("messages too large", |arena| too_large(arena).boxed()),
            Case::new("a lane without relay", |arena| unserved(arena).boxed()).may_raise(&LATE),
            Case::new("a handler that fails", |arena| handler(arena).boxed()),
        ],
    }
}

pub(super) fn canary() -> Row {
    let case = || Case::new("a wrong route", |arena| stranger(arena).boxed()).may_raise(&LATE);
    Row {
        id: "C2",
        fault: "a relay with wrong routes takes the messages of others that are paused; Prometheus beside it",
        shows: "the canary alone shows that messages do not arrive",
        cases: vec![case(), case().on(Flavor::MariaDb, Broker::RabbitMq)],
    }
}

/// The command line, with the account of an operator.
fn operator(arena: &Arena) -> Result<Client> {
    Ok(Client::new(&arena.setup.relay, arena.database.url_as(Account::Operator)?))
}

/// A limit that is divided by the factor of the rules, after a time that is not.
fn due(arena: &Arena, alert: &'static str, fixed: u64, divided: u64) -> Due {
    let divided = Duration::from_secs(divided) / arena.setup.faster;
    (alert, Duration::from_secs(fixed) + divided)
}

async fn nothing(arena: &mut Arena) -> Result<()> {
    (arena.faults_due, arena.in_flight_due) = (0, false);
    let watch = Watch::normal(arena, None).await?;
    let time = Duration::from_mins(10) / arena.setup.faster;
    watch.quiet(&[], time, time + PATIENCE).await
}

async fn no_relay(arena: &mut Arena) -> Result<()> {
    let watch = Watch::normal(arena, None).await?;
    for relay in std::mem::take(&mut arena.relays) {
        let death = arena.kill(relay).await?;
        arena.may_be_sent_twice(death.held);
    }
    let absent = due(arena, "OutboxRelayAbsent", 5, 115);
    watch.fires(arena, &[absent]).await?;
    arena.start_relays(2)
}

async fn one_relay(arena: &mut Arena) -> Result<()> {
    let watch = Watch::normal(arena, None).await?;
    let victim = arena.relays.pop().context("no relay runs")?;
    let death = arena.kill(victim).await?;
    arena.may_be_sent_twice(death.held);
    let one = due(arena, "OutboxOneRelay", 60, 660);
    watch.fires(arena, &[one]).await?;
    arena.start_relays(1)?;
    Ok(())
}

async fn frozen(arena: &mut Arena) -> Result<()> {
    let watch = Watch::normal(arena, None).await?;
    arena.duplicates_are_announced();
    relay_frozen::pause(arena).await?;
    arena.struck(true);
    let pid = arena.relays.first().context("no relay runs")?.pid();
    arena.taken_over(pid, Instant::now(), 2 * LEASE).await?;
    arena.relays.first().context("no relay runs")?.resume()?;
    let lost = due(arena, "OutboxLeasesLost", 10, 30);
    watch.fires(arena, &[lost]).await
}

async fn database(arena: &mut Arena) -> Result<()> {
    let proxy = before_the_database(arena).await?;
    // The proxy is in this busy process: a relay's first calls on a connection can take a second, which is the usual
    // deadline here.
    arena.settings = arena.settings.clone().set("relay", "lease", "9s").set("relay", "settle_deadline", "3s");
    let watch = Watch::normal(arena, None).await?;
    arena.duplicates_are_announced();
    arena.strike().await?;
    for direction in Direction::BOTH {
        proxy.black_hole(direction);
    }
    let unreachable = due(arena, "OutboxDatabaseUnreachable", 15, 75);
    watch.fires(arena, &[unreachable]).await?;
    proxy.heal();
    Ok(())
}

async fn locked(arena: &mut Arena) -> Result<()> {
    // A shorter deadline ends a call before the server ends its wait for the table.
    arena.settings = arena.settings.clone().set("relay", "lease", "15s").set("relay", "settle_deadline", "5s");
    let watch = Watch::normal(arena, None).await?;
    arena.strike().await?;
    let mut console = arena.database.plain().await?;
    sqlx::raw_sql("LOCK TABLES outbox_jobs WRITE").execute(&mut console).await?;
    let locked = due(arena, "OutboxTableLocked", 15, 75);
    watch.fires(arena, &[locked]).await?;
    sqlx::raw_sql("UNLOCK TABLES").execute(&mut console).await?;
    Ok(())
}

async fn broker(arena: &mut Arena) -> Result<()> {
    // The consumer has a topic of its own: it takes nothing from the judge.
    let topic = arena.ground.topic(arena.topic.broker()).await?;
    let page = consume(&topic, handler_fn(|_, _| Box::pin(async { Ok(()) }))).await?;
    let watch = Watch::normal(arena, Some(page)).await?;
    arena.duplicates_are_announced();
    arena.strike().await?;
    arena.ground.broker()?.kill()?;
    let alerts = [due(arena, "OutboxSinkDisconnected", 10, 125), due(arena, "OutboxConsumerDisconnected", 15, 500)];
    watch.fires(arena, &alerts).await?;
    arena.ground.broker()?.restart().await?;
    // The messages that were late have been sent.
    let burns = due(arena, "OutboxBudgetBurnsFast", 60, 60);
    watch.fires(arena, &[burns]).await
}

/// Consumes a topic until the runtime ends, with a database of its own. Returns the port of its metrics.
async fn consume(topic: &Topic, handler: impl Handler) -> Result<u16> {
    let registry = Registry::new();
    let database = Database::create(Flavor::MySql).await?;
    let pool = MySqlPool::connect(&database.url_as(Account::Service)?).await?;
    let address = topic.address();
    let name = topic.name();
    let metrics = outbox_consumer::Metrics::register(&registry)?;
    match topic.broker() {
        Broker::Kafka => {
            let consumer = kafka::Consumer::new(address, &format!("mail-{name}"), pool)?.topic(name).metrics(metrics);
            tokio::spawn(consumer.run(handler, future::pending()));
        }
        Broker::RabbitMq => {
            let consumer = rabbitmq::Consumer::new(address, name, name, pool)?.metrics(metrics);
            tokio::spawn(consumer.run(handler, future::pending()));
        }
    }
    serve(registry).await
}

/// The grace for unroutable messages is a second here: the message is dead, and an operator retries it.
async fn missing(arena: &mut Arena) -> Result<()> {
    let watch = Watch::normal(arena, None).await?;
    arena.strike().await?;
    arena.past_consumers = true;
    let later = format!("later-{}", arena.topic.name());
    load::commit(&arena.database, &arena.ledger, &[Draft::new(&later, "early")], |message| message).await?;
    let alerts = [due(arena, "OutboxDestinationRefuses", 15, 75), due(arena, "OutboxDeadMessages", 20, 10)];
    watch.fires(arena, &alerts).await?;
    arena.topic.create_beside(&later).await?;
    // The relays have counted it as dead, and it arrives.
    arena.complete = false;
    operator(arena)?.done("dead retry", &["--all", "--yes", "--because", "the topic exists now"]).await?;
    Ok(())
}

/// A tenth of a destination's messages is too large.
async fn too_large(arena: &mut Arena) -> Result<()> {
    const LIMIT: usize = 100_000;
    std::mem::replace(&mut arena.topic, Topic::create_narrow(LIMIT).await?).remove().await?;
    arena.settings = arena.settings.clone().kafka_property("batch.size", "90000");
    (arena.rate, arena.largest) = (5.0, 1000);
    let watch = Watch::normal(arena, None).await?;
    arena.strike().await?;
    let database = arena.database.clone();
    let ledger = arena.ledger.clone();
    let topic = arena.topic.name().to_owned();
    let enough = AtomicBool::new(false);
    let mut guilty = Vec::new();
    let fails = async {
        let mut pace = tokio::time::interval(Duration::from_millis(500));
        while !enough.load(Ordering::Relaxed) {
            pace.tick().await;
            let draft = Draft::new(&topic, vec![0; LIMIT + 1]);
            guilty.push(draft.id);
            load::commit(&database, &ledger, &[draft], |message| message).await?;
        }
        Ok(())
    };
    let alerts = [due(arena, "OutboxDeadMessages", 20, 10), due(arena, "OutboxFailureRatio", 20, 1300)];
    let fires = async {
        let result = watch.fires(arena, &alerts).await;
        enough.store(true, Ordering::Relaxed);
        result
    };
    tokio::try_join!(fires, fails)?;
    let all = format!("SELECT COUNT(*) = {} FROM outbox_dead", guilty.len());
    arena.database.wait_for(PATIENCE, &all).await?;
    // The relays have counted them as dead, and no table has them any more.
    arena.complete = false;
    arena.orders.discarded = guilty.len() as u64;
    arena.orders.discardable.extend(guilty);
    operator(arena)?.done("dead discard", &["--all", "--yes", "--because", "they are too large"]).await?;
    Ok(())
}

async fn unserved(arena: &mut Arena) -> Result<()> {
    let all = arena.settings.clone();
    arena.settings = all.clone().set("relay", "lanes", vec![0]);
    let watch = Watch::normal(arena, None).await?;
    arena.strike().await?;
    let draft = Draft::new(arena.topic.name(), "elsewhere");
    load::commit(&arena.database, &arena.ledger, &[draft], |message| message.lane(9)).await?;
    let alerts = [due(arena, "OutboxStalled", 85, 35), due(arena, "OutboxLagHigh", 20, 380)];
    watch.fires(arena, &alerts).await?;
    arena.settings = all;
    arena.start_relays(1)?;
    Ok(())
}

/// A handler of another consumer of the topic fails, and later refuses a message.
async fn handler(arena: &mut Arena) -> Result<()> {
    const WORKS: u8 = 0;
    const FAILS: u8 = 1;
    const REFUSES: u8 = 2;
    let does = Arc::new(AtomicU8::new(WORKS));
    let told = Arc::clone(&does);
    let handler = handler_fn(move |_, _| {
        let does = told.load(Ordering::Relaxed);
        Box::pin(async move {
            match does {
                FAILS => Err(Failure::from("the mail server is away")),
                REFUSES => Err(Failure::dead("no address")),
                _ => Ok(()),
            }
        })
    });
    let page = consume(&arena.topic, handler).await?;
    let watch = Watch::normal(arena, Some(page)).await?;
    arena.strike().await?;
    does.store(FAILS, Ordering::Relaxed);
    let fails = due(arena, "OutboxConsumerFails", 20, 960);
    watch.fires(arena, &[fails]).await?;
    does.store(REFUSES, Ordering::Relaxed);
    let dead = due(arena, "OutboxConsumerDeadMessages", 20, 10);
    watch.fires(arena, &[dead]).await?;
    does.store(WORKS, Ordering::Relaxed);
    Ok(())
}

/// The wrong route is that of the canaries alone, so that nothing of the load is lost.
async fn stranger(arena: &mut Arena) -> Result<()> {
    // On RabbitMQ an exchange with a queue: what comes late is not unroutable.
    let canaries = arena.ground.topic(arena.topic.broker()).await?;
    let topic = canaries.name();
    let grants = include_str!("../../../../deploy/grants/canary.sql");
    for account in ["outbox_relay", "outbox_relay_process", "outbox_relay_tail"] {
        arena.database.execute(&grants.replace("outbox_relay", account)).await?;
    }
    let wrong = arena.settings.clone().null().first_route([("topics", topic), ("sink", "null")]);
    if canaries.broker() == Broker::RabbitMq {
        let route = [("topics", topic), ("sink", "rabbitmq"), ("exchange", topic), ("routing_key", "{topic}")];
        arena.settings = arena.settings.clone().first_route(route);
    }
    let interval = format!("{}s", 30 / arena.setup.faster);
    arena.settings = arena.settings.clone().set("canary", "topic", topic).set("canary", "interval", interval);
    let watch = Watch::normal(arena, None).await?;
    for relay in &mut arena.relays {
        let is_back = |metrics: &Metrics| metrics.sum("outbox_relay_canary_last_duration_seconds") > 0.0;
        relay.wait_for_metrics(2 * PATIENCE, "the canary", is_back).await?;
    }
    let operator = operator(arena)?;
    let relays = instances(arena).await?;
    arena.relays.push(arena.relay(&wrong)?);
    arena.strike().await?;
    for instance in &relays {
        operator.done("pause --because", &["maintenance", "--instance", instance]).await?;
    }
    let lost = due(arena, "OutboxCanaryLost", 5, 115);
    watch.fires(arena, &[lost]).await?;
    for instance in &relays {
        operator.done("resume --because", &["the other one is wrong", "--instance", instance]).await?;
    }
    let stranger = arena.relays.pop().context("no relay runs")?;
    let death = arena.kill(stranger).await?;
    arena.may_be_sent_twice(death.held);
    Ok(())
}

/// The names of the running relays.
async fn instances(arena: &Arena) -> Result<Vec<String>> {
    let mut db = arena.database.plain().await?;
    Ok(sqlx::query_scalar("SELECT CAST(instance AS CHAR) FROM outbox_instances").fetch_all(&mut db).await?)
}

#[cfg(test)]
mod tests {
    /// Their times are hours, or no fault raises them: `dashboards/tests` alone tests them.
    const NOT_RAISED: [&str; 8] = [
        "OutboxDeadMessagesDeletedSoon",
        // A locked table has its own alert, which keeps this one silent.
        "OutboxLoopStuck",
        "OutboxPurgeStuck",
        "OutboxConsumerGap",
        "OutboxInboxTooShort",
        "OutboxBudgetBurnsSlowly",
        // `tests/relay/tail.rs` has a row that the log does not show.
        "OutboxTailMissed",
        "OutboxTailOff",
    ];

    #[test]
    fn each_alert_has_a_case_or_a_reason_for_none() {
        let rules = include_str!("../../../../dashboards/alerts.rules.yml");
        let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
        assert!(alerts.len() > 15, "{alerts:?}");
        for alert in alerts {
            let is_raised = include_str!("alerts.rs").contains(&format!("due(arena, \"{alert}\","));
            assert!(is_raised != NOT_RAISED.contains(&alert), "{alert}");
        }
    }
}
