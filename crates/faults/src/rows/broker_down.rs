//! K1, A1 and B1: the broker dies and comes back, freezes, or is away for a long time.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::FutureExt as _;
use testkit::{consume::Broker, proxy::Direction, servers::Flavor};

use super::{
    between::{before_the_broker, counted},
    kafka_refuses::broken,
    rolling_restart,
};
use crate::{
    arena::{Arena, PATIENCE, Pace},
    row::{Case, Row},
};

pub(super) fn kafka() -> Row {
    let on = |case: Case, flavor| case.on(flavor, Broker::Kafka).own_broker();
    Row {
        id: "K1",
        fault: "kill -9 Kafka and restart; SIGSTOP; a black hole in each direction; one of three brokers killed, \
                frozen or stopped",
        shows: "first publish within 15 s; without one of three, all that was committed until others lead within 15 s; \
                no key reordered",
        cases: vec![
            on(Case::new("killed", |arena| killed(arena).boxed()), Flavor::MySql).short(),
            on(Case::new("killed", |arena| killed(arena).boxed()), Flavor::MariaDb),
            on(Case::new("frozen", |arena| frozen(arena).boxed()), Flavor::MySql),
            on(Case::new("black holes", |arena| black_holes(arena).boxed()), Flavor::MySql),
            Case::new("one of three killed", |arena| one_of_three(arena, Away::Killed).boxed()).three_brokers(),
            Case::new("one of three frozen", |arena| one_of_three(arena, Away::Frozen).boxed()).three_brokers(),
            Case::new("one of three stopped", |arena| one_of_three(arena, Away::Stopped).boxed()).three_brokers(),
        ],
    }
}

pub(super) fn rabbitmq() -> Row {
    let on = |case: Case, flavor| case.on(flavor, Broker::RabbitMq).own_broker();
    Row {
        id: "A1",
        fault: "kill -9 RabbitMQ and restart; connections closed, or broken at random byte positions; SIGSTOP; a black \
                hole in each direction",
        shows: "first publish within 20 s; no key reordered",
        cases: vec![
            on(Case::new("killed", |arena| killed(arena).boxed()), Flavor::MySql),
            on(Case::new("killed", |arena| killed(arena).boxed()), Flavor::MariaDb),
            on(Case::new("connections closed", |arena| closed(arena).boxed()), Flavor::MySql).short(),
            Case::new("connections break", |arena| broken(arena).boxed()).on(Flavor::MySql, Broker::RabbitMq),
            on(Case::new("frozen", |arena| frozen(arena).boxed()), Flavor::MySql),
            Case::new("black holes", |arena| black_holes(arena).boxed()).on(Flavor::MySql, Broker::RabbitMq),
        ],
    }
}

pub(super) fn long() -> Row {
    let case = |broker, words| {
        Case::new("away", |arena| away(arena).boxed()).on(Flavor::MySql, broker).own_broker().told(words)
    };
    let [kafka, rabbitmq] = ["Sink kafka takes nothing from", "Sink rabbitmq takes nothing from"];
    Row {
        id: "B1",
        fault: "the broker is down for long while messages arrive",
        shows: "no attempt spent, nothing dead, no spin, drains after",
        cases: vec![case(Broker::Kafka, kafka), case(Broker::RabbitMq, rabbitmq).short()],
    }
}

/// The time limit for other brokers to lead the partitions of one that is away: it is given up after 2 s.
const ELECTED: Duration = Duration::from_secs(30);

/// The time limit for the relays to publish again after the broker answers.
pub(super) fn recovery(arena: &Arena) -> Duration {
    Duration::from_secs(if arena.topic.broker() == Broker::Kafka { 15 } else { 20 })
}

async fn killed(arena: &mut Arena) -> Result<()> {
    arena.duplicates_are_announced();
    arena.start().await?;
    for _ in 0..2 {
        let down = arena.lasting(500..5000, 500);
        kill(arena, down).await?;
    }
    no_attempt_was_spent(arena).await
}

/// How one of three brokers goes down.
#[derive(Debug, Clone, Copy)]
enum Away {
    Killed,
    Frozen,
    Stopped,
}

/// Takes each broker down in turn; the others go on without it.
async fn one_of_three(arena: &mut Arena, away: Away) -> Result<()> {
    arena.duplicates_are_announced();
    // Each message is written three times, on processors that write it once in other cases.
    arena.rate /= 3.0;
    arena.start().await?;
    for _ in 0..3 {
        // A relay that has just started meets leaders that move.
        let relay = arena.relays.remove(0);
        rolling_restart::stop(arena, relay).await?;
        arena.start_relays(1)?;
        arena.strike().await?;
        match away {
            Away::Killed => arena.ground.broker()?.kill()?,
            Away::Frozen => arena.ground.broker()?.pause()?,
            Away::Stopped => arena.ground.broker()?.stop().await?,
        }
        go_on(arena).await?;
        match away {
            Away::Frozen => arena.ground.broker()?.resume().await?,
            Away::Killed | Away::Stopped => arena.ground.broker()?.restart().await?,
        }
        let bound = recovery(arena);
        arena.recovered(Instant::now(), bound).await?;
    }
    Ok(())
}

/// Waits until every message committed before the others lead is published. Messages on partitions that they always led
/// prove nothing about those of the lost broker. How long they take to elect leaders is Kafka's affair.
async fn go_on(arena: &mut Arena) -> Result<()> {
    let away = Instant::now();
    arena.ground.broker()?.others_lead().await?;
    arena.within("to lead without a broker", away.elapsed(), ELECTED);
    let start = Instant::now();
    let newest = arena.database.number("SELECT CAST(MAX(id) AS SIGNED) FROM outbox_messages").await?;
    let open = "(SELECT id FROM outbox_pending UNION ALL SELECT id FROM outbox_delayed)";
    let gone = format!("SELECT COUNT(*) = 0 FROM {open} open WHERE id <= {newest}");
    arena.database.wait_for(PATIENCE, &gone).await?;
    let took = start.elapsed();
    let bound = recovery(arena);
    arena.counts.recovered(took);
    arena.within("to go on without a broker", took, bound);
    Ok(())
}

/// Kills the broker, leaves it down for this duration, and starts it again.
pub(super) async fn kill(arena: &mut Arena, down: Duration) -> Result<()> {
    arena.strike().await?;
    arena.ground.broker()?.kill()?;
    tokio::time::sleep(down).await;
    arena.ground.broker()?.restart().await?;
    let bound = recovery(arena);
    arena.recovered(Instant::now(), bound).await
}

async fn frozen(arena: &mut Arena) -> Result<()> {
    arena.duplicates_are_announced();
    arena.start().await?;
    let long = arena.lasting(20_000..60_000, 4000);
    freeze(arena, long).await
}

/// Freezes the broker for this duration.
pub(super) async fn freeze(arena: &mut Arena, time: Duration) -> Result<()> {
    arena.strike().await?;
    arena.ground.broker()?.pause()?;
    tokio::time::sleep(time).await;
    arena.ground.broker()?.resume().await?;
    let bound = recovery(arena);
    arena.recovered(Instant::now(), bound).await
}

/// Requests are neither taken nor refused, or replies do not arrive; later all of them do.
async fn black_holes(arena: &mut Arena) -> Result<()> {
    let proxy = before_the_broker(arena).await?;
    arena.duplicates_are_announced();
    arena.start().await?;
    for direction in Direction::BOTH {
        let held = proxy.counts().held;
        arena.strike().await?;
        proxy.black_hole(direction);
        counted(&proxy, "something to be held back", |counts| counts.held > held).await?;
        tokio::time::sleep(arena.lasting(5_000..20_000, 3000)).await;
        proxy.heal();
        let bound = recovery(arena);
        arena.recovered(Instant::now(), bound).await?;
    }
    Ok(())
}

async fn closed(arena: &mut Arena) -> Result<()> {
    arena.duplicates_are_announced();
    arena.start().await?;
    for _ in 0..3 {
        arena.strike().await?;
        arena.ground.broker()?.rabbitmqctl(&["close_all_connections", "a fault"]).await?;
        let bound = recovery(arena);
        arena.recovered(Instant::now(), bound).await?;
    }
    no_attempt_was_spent(arena).await
}

/// Less load: otherwise the arrivals would not fit into the judge's memory.
async fn away(arena: &mut Arena) -> Result<()> {
    arena.duplicates_are_announced();
    if arena.setup.pace == Pace::Full {
        arena.rate = 30.0;
    }
    arena.start().await?;
    let down = arena.setup.outage;
    arena.drains_within += down / 4;
    arena.strike().await?;
    arena.ground.broker()?.kill()?;
    arena.watch("while the broker is away", down).await?;
    arena.told().await?;
    no_attempt_was_spent(arena).await?;
    arena.ground.broker()?.restart().await?;
    let bound = recovery(arena);
    arena.recovered(Instant::now(), bound).await
}

/// An outage is no message's fault. Only messages in flight, whose arrival is unknown, have spent an attempt.
async fn no_attempt_was_spent(arena: &Arena) -> Result<()> {
    let dead = arena.database.number("SELECT COUNT(*) FROM outbox_dead").await?;
    ensure!(dead == 0, "{dead} messages died of an outage");
    let sql = "SELECT CAST(COALESCE(SUM(attempts), 0) AS SIGNED) \
               FROM (SELECT attempts FROM outbox_pending UNION ALL SELECT attempts FROM outbox_delayed) open";
    // The relay counts before it writes: the attempts are read first, and never exceed the count.
    let spent = arena.database.number(sql).await?;
    let uncertain = arena.metric("outbox_relay_possible_duplicates_total", "").await;
    ensure!(f64::from(i32::try_from(spent)?) <= uncertain, "{spent} attempts spent, {uncertain} messages on the way");
    Ok(())
}
