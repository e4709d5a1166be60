//! S1: the owner of a tail.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures_util::FutureExt as _;
use outbox_core::sqlx;
use rand::RngExt as _;
use testkit::{
    consume::Broker,
    ledger::Draft,
    load,
    proxy::Direction,
    relay::Relay,
    servers::{Flavor, until},
};

use super::{between::before_the_database, relay_frozen, relay_killed::BEYOND};
use crate::{
    arena::{Arena, LEASE, PATIENCE, Pace},
    row::{Case, Row, Strike},
};

/// The time limit for other relays to close the claim of a dead owner, to list it, and to go on.
const LANE: Duration = Duration::from_secs(5);
/// The number of times an owner is struck.
const ROUNDS: u32 = 4;
/// Messages of a backlog.
const BACKLOG: usize = 3000;
/// The longest time that a transaction stays open after its messages.
const LATE: Duration = Duration::from_millis(500);
/// Bytes of the rows that another schema writes, and of one that no stream takes.
const FOREIGN: usize = 2 << 20;
const TOO_LARGE: usize = 12 << 20;
/// The bytes in a second, over this time, that end a tail for sure: twice its limit.
const TOO_MANY: f64 = 20e6;
const LONG: Duration = Duration::from_secs(90);

pub(super) fn row() -> Row {
    let cases = || {
        [
            Case::new("killed", |arena| killed(arena).boxed()),
            Case::new("0.5 leases", |arena| frozen(arena, 0.5).boxed()),
            Case::new("1.5 leases", |arena| frozen(arena, 1.5).boxed()),
            Case::new("3 leases", |arena| frozen(arena, 3.0).boxed()),
            Case::new("cut off", |arena| cut_off(arena).boxed()),
            Case::new("closed", |arena| closed(arena).boxed()),
            Case::new("logs rotated and purged", |arena| rotated(arena).boxed()),
            Case::new("a backlog", |arena| backlog(arena).boxed()),
            Case::new("late commits", |arena| late(arena).boxed()),
            Case::new("a busy server", |arena| busy(arena).boxed()),
        ]
    };
    let others = cases().map(|case| case.on(Flavor::MariaDb, Broker::RabbitMq));
    let killed = [
        Case::new("stream killed", |arena| stream_killed(arena, Flavor::MySql).boxed()),
        Case::new("stream killed", |arena| stream_killed(arena, Flavor::MariaDb).boxed())
            .on(Flavor::MariaDb, Broker::RabbitMq),
        Case::new("logs reset", |arena| reset(arena, "RESET BINARY LOGS AND GTIDS").boxed()),
        Case::new("logs reset", |arena| reset(arena, "RESET MASTER").boxed()).on(Flavor::MariaDb, Broker::RabbitMq),
    ];
    Row {
        id: "S1",
        fault: "the owner of a tail is killed, frozen for 0.5 to 3 leases, or cut off from the database; the tail is \
                closed; its stream is killed; logs are rotated, purged and reset; a backlog comes and goes; \
                transactions commit up to 0.5 s after their enqueues; another schema writes as fast as it can",
        shows: "the lane goes on within 5 s; duplicates only of what the owner held; none without a death",
        cases: cases().into_iter().chain(others).chain(killed).map(tailed).map(in_short).collect(),
    }
}

/// One case belongs to the short form.
fn in_short(case: Case) -> Case {
    if case.name == "stream killed" && case.flavor == Flavor::MariaDb { case.short() } else { case }
}

/// The case with tails.
fn tailed(case: Case) -> Case {
    let inner = Arc::new(case.strike);
    let strike: Strike = Box::new(move |arena| {
        let inner = Arc::clone(&inner);
        async move {
            arena.with_tails(true)?;
            inner(arena).await?;
            let tails = arena.metric("outbox_relay_tail_ends_total", "").await
                + arena.metric("outbox_relay_tailed_lanes", "").await;
            arena.witness("a tail", tails > 0.0);
            Ok(())
        }
        .boxed()
    });
    Case { strike, ..case }
}

/// Waits for a tail, and puts its owner first.
async fn owner_first(arena: &mut Arena) -> Result<()> {
    let sql = "SELECT owner FROM outbox_claims WHERE kind = 1";
    let at = until(PATIENCE, "a tail", || async {
        let mut connection = arena.database.connect_as_admin().await?;
        let owner: Option<String> = sqlx::query_scalar(sql).fetch_optional(&mut connection).await?;
        let owner = owner.context("no relay has a tail")?;
        let is_owner = |relay: &Relay| owner.contains(&format!("-{}/", relay.pid()));
        arena.relays.iter().position(is_owner).context("another process has the tail")
    });
    let at = at.await?;
    arena.relays.swap(0, at);
    Ok(())
}

async fn killed(arena: &mut Arena) -> Result<()> {
    arena.start().await?;
    for _ in 0..ROUNDS {
        owner_first(arena).await?;
        // At any moment between two settlements.
        tokio::time::sleep(Duration::from_millis(arena.random.random_range(0..500))).await;
        let victim = arena.relays.swap_remove(0);
        let death = arena.kill(victim).await?;
        arena.may_be_sent_twice(death.held);
        arena.recovered(death.at, LANE).await?;
        arena.taken_over(death.pid, death.at, LEASE + BEYOND).await?;
        arena.start_relays(1)?;
    }
    Ok(())
}

async fn frozen(arena: &mut Arena, factor: f64) -> Result<()> {
    arena.start().await?;
    for _ in 0..ROUNDS {
        owner_first(arena).await?;
        let held = relay_frozen::pause(arena).await?;
        arena.struck(true);
        arena.may_be_sent_twice(held);
        tokio::time::sleep(LEASE.mul_f64(factor)).await;
        arena.relays.first().context("no relay runs")?.resume()?;
        arena.recovered(Instant::now(), LANE).await?;
    }
    let takeovers = arena.metric("outbox_relay_lease_takeovers_total", "").await;
    arena.witness("a take-over", factor < 1.0 || takeovers > 0.0);
    Ok(())
}

async fn cut_off(arena: &mut Arena) -> Result<()> {
    let direct = arena.settings.clone();
    let proxy = before_the_database(arena).await?;
    arena.start_relays(1)?;
    arena.start_load().await?;
    owner_first(arena).await?;
    let victim = arena.relays.remove(0);
    arena.settings = direct;
    arena.start_relays(2)?;
    arena.working().await?;
    for direction in Direction::BOTH {
        proxy.black_hole(direction);
    }
    let cut_off = Instant::now();
    let held = arena.claimed_by(Some(victim.pid())).await?;
    arena.struck(!held.is_empty());
    arena.may_be_sent_twice(held);
    arena.recovered(cut_off, LANE).await?;
    arena.taken_over(victim.pid(), cut_off, LEASE + BEYOND).await?;
    proxy.heal();
    arena.relays.push(victim);
    arena.recovered(Instant::now(), LANE).await
}

async fn closed(arena: &mut Arena) -> Result<()> {
    arena.start().await?;
    for _ in 0..2 * ROUNDS {
        owner_first(arena).await?;
        arena.struck(true);
        arena.close_tails().await?;
        arena.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_claims WHERE kind = 2").await?;
    }
    arena.recovered(Instant::now(), LANE).await
}

/// Ends the server's threads of all streams.
async fn stream_killed(arena: &mut Arena, flavor: Flavor) -> Result<()> {
    arena.start().await?;
    for round in 1..=ROUNDS {
        owner_first(arena).await?;
        let mut connection = arena.database.connect_as_admin().await?;
        let threads: Vec<i64> =
            sqlx::query_scalar(sqlx::AssertSqlSafe(flavor.streams())).fetch_all(&mut connection).await?;
        for thread in threads {
            // One may have ended by itself.
            arena.database.execute(&format!("KILL {thread}")).await.ok();
        }
        arena.struck(true);
        until(PATIENCE, "the end of the tail", || async {
            let ended = arena.metric("outbox_relay_tail_ends_total", "reason=\"stream\"").await;
            ensure!(ended > f64::from(round) - 0.5, "{ended} have ended");
            Ok(())
        })
        .await?;
        arena.recovered(Instant::now(), LANE).await?;
    }
    Ok(())
}

async fn rotated(arena: &mut Arena) -> Result<()> {
    arena.start().await?;
    for _ in 0..ROUNDS {
        owner_first(arena).await?;
        arena.struck(true);
        arena.database.execute("FLUSH BINARY LOGS; PURGE BINARY LOGS BEFORE NOW()").await?;
        arena.recovered(Instant::now(), LANE).await?;
    }
    Ok(())
}

async fn backlog(arena: &mut Arena) -> Result<()> {
    arena.start().await?;
    for _ in 0..ROUNDS {
        owner_first(arena).await?;
        arena.struck(true);
        let messages = if arena.setup.pace == Pace::Full { BACKLOG } else { BACKLOG / 3 };
        let drafts: Vec<Draft> =
            (0..messages).map(|number| Draft::new(arena.topic.name(), number.to_string())).collect();
        load::commit(&arena.producers, &arena.ledger, &drafts, |message| message).await?;
        let pending = "SELECT COUNT(*) < 100 FROM outbox_pending";
        arena.database.wait_for(PATIENCE, pending).await?;
    }
    arena.recovered(Instant::now(), LANE).await
}

/// Lower ids commit after higher ones, and the tail is closed among them.
async fn late(arena: &mut Arena) -> Result<()> {
    arena.held = LATE;
    closed(arena).await
}

/// Another schema of the server writes as fast as it can, and the stream has all of that: no tail is worth it. A slow
/// server may write less than that.
async fn busy(arena: &mut Arena) -> Result<()> {
    arena.start().await?;
    owner_first(arena).await?;
    arena.struck(true);
    let table = format!("foreign_{:08x}.t", arena.random.random::<u32>());
    let schema = table.trim_end_matches(".t");
    let create =
        format!("CREATE DATABASE {schema}; CREATE TABLE {table} (id BIGINT AUTO_INCREMENT PRIMARY KEY, data LONGBLOB)");
    arena.database.execute(&create).await?;
    let mut connection = arena.database.connect_as_admin().await?;
    let written = AtomicUsize::new(0);
    let start = Instant::now();
    let writes = async {
        for bytes in std::iter::once(TOO_LARGE).chain(std::iter::repeat(FOREIGN)) {
            written.fetch_add(bytes, Ordering::Relaxed);
            let insert = format!("INSERT INTO {table} (data) VALUES (REPEAT('x', {bytes}))");
            sqlx::query(sqlx::AssertSqlSafe(insert)).execute(&mut connection).await?;
        }
        Ok::<_, sqlx::Error>(())
    };
    let busy = until(PATIENCE, "no tail beside so much", || async {
        let busy = arena.metric("outbox_relay_tail_ends_total", "reason=\"busy\"").await;
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = written.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        let is_slow = start.elapsed() > LONG && rate < TOO_MANY;
        ensure!(busy > 0.5 || is_slow, "no tail has ended so, at {rate:.0} bytes a second");
        Ok(())
    });
    tokio::select! {
        ended = busy => ended?,
        failed = writes => failed?,
    }
    arena.database.execute(&format!("DROP DATABASE {schema}")).await?;
    arena.recovered(Instant::now(), LANE).await
}

async fn reset(arena: &mut Arena, statement: &str) -> Result<()> {
    arena.start().await?;
    for _ in 0..ROUNDS {
        owner_first(arena).await?;
        arena.struck(true);
        arena.database.execute(statement).await?;
        arena.recovered(Instant::now(), LANE).await?;
    }
    Ok(())
}
