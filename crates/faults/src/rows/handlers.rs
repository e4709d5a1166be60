//! D4 and D5: handlers of a service that are cancelled, and handlers that swallow deadlocks and lock waits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures_util::{FutureExt as _, future::join_all};
use outbox_core::{
    Outbox, cancel_safe,
    sqlx::{self, Connection as _, MySqlPool, mysql::MySqlPoolOptions},
    store::error_number,
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use testkit::{
    accounts::Account,
    consume::Broker,
    ledger::{Draft, Ledger, Outcome},
    load::insert_business_rows,
    servers::{Flavor, until},
};

use crate::{
    arena::{Arena, PATIENCE, Pace},
    row::{Case, Row},
};

const POOL: u32 = 5;
const TASKS: u64 = 10;
/// Locks the row of a key.
const LOCK: &str = "UPDATE test_keys SET sequence = sequence + 1 WHERE id = ?";

pub(super) fn cancelled() -> Row {
    let case = |flavor, broker| Case::new("a pool of 5", |arena| cancel(arena).boxed()).on(flavor, broker);
    Row {
        id: "D4",
        fault: "handlers cancelled at random awaits, on a pool of 5",
        shows: "no transaction left open, no statement in a foreign transaction",
        cases: vec![case(Flavor::MySql, Broker::Kafka).short(), case(Flavor::MariaDb, Broker::RabbitMq)],
    }
}

pub(super) fn deadlocks() -> Row {
    let case = |flavor, broker| Case::new("swallowed", |arena| deadlock(arena).boxed()).on(flavor, broker);
    Row {
        id: "D5",
        fault: "deadlocks and lock waits that the service swallows",
        shows: "no phantom, no message without its business row",
        cases: vec![case(Flavor::MySql, Broker::Kafka), case(Flavor::MariaDb, Broker::RabbitMq).short()],
    }
}

/// The parts that a service's handlers share.
#[derive(Clone)]
struct Service {
    pool: MySqlPool,
    ledger: Ledger,
    topic: String,
    /// The errors they swallowed: deadlocks, and lock waits that timed out.
    deadlocks: Arc<AtomicU64>,
    lock_waits: Arc<AtomicU64>,
}

impl Service {
    async fn new(arena: &Arena) -> Result<Self> {
        let options = MySqlPoolOptions::new().max_connections(POOL).acquire_timeout(PATIENCE);
        let pool = cancel_safe(options).connect(&arena.database.url_as(Account::Service)?).await?;
        let deadlocks = Arc::default();
        let lock_waits = Arc::default();
        Ok(Self { pool, ledger: arena.ledger.clone(), topic: arena.topic.name().to_owned(), deadlocks, lock_waits })
    }

    fn draft(&self, key: u64) -> Draft {
        Draft::new(&self.topic, format!("of key {key}")).unordered_key(format!("handler-{key}"))
    }

    /// An honest handler. If it is cancelled, the ledger does not know the transaction's outcome: the business row
    /// shows it.
    async fn handle(&self, key: u64) -> Result<()> {
        let drafts = [self.draft(key), self.draft(key)];
        let mut tx = self.pool.begin().await?;
        let opened = self.ledger.open(&drafts);
        Outbox::new().enqueue(&mut tx, drafts[0].message()).await?;
        insert_business_rows(&mut tx, &drafts).await?;
        Outbox::new().enqueue(&mut tx, drafts[1].message()).await?;
        tx.commit().await?;
        opened.committed();
        Ok(())
    }

    /// A handler that goes on after deadlocks and lock waits that time out.
    async fn swallow(&self, keys: [u64; 2]) -> Result<()> {
        let draft = self.draft(keys[0]);
        let mut tx = self.pool.begin().await?;
        let opened = self.ledger.open(std::slice::from_ref(&draft));
        sqlx::query("SET innodb_lock_wait_timeout = 1").execute(&mut *tx).await?;
        insert_business_rows(&mut tx, std::slice::from_ref(&draft)).await?;
        for key in keys {
            if let Err(error) = sqlx::query(LOCK).bind(key).execute(&mut *tx).await {
                self.count(error)?;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Whatever happened to the other statements, this one shows whether message and business row share a
        // transaction.
        match Outbox::new().enqueue(&mut tx, draft.message()).await {
            Ok(_) => {
                tx.commit().await?;
                opened.committed();
            }
            Err(_) => {
                opened.rolled_back();
                tx.rollback().await?;
            }
        }
        Ok(())
    }

    /// Counts a swallowed error; any other is returned.
    fn count(&self, error: sqlx::Error) -> Result<()> {
        let count = match error_number(&error) {
            Some(1213) => &self.deadlocks,
            Some(1205) => &self.lock_waits,
            _ => return Err(error.into()),
        };
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

async fn cancel(arena: &mut Arena) -> Result<()> {
    arena.start().await?;
    let service = Service::new(arena).await?;
    arena.strike().await?;
    let seed = arena.random.random::<u64>();
    let due = if arena.setup.pace == Pace::Full { 2000 } else { 100 };
    let start = Instant::now();
    let ended = Arc::new(AtomicU64::new(0));
    let committed = Arc::new(AtomicU64::new(0));
    let tasks = (0..TASKS).map(|task| {
        let service = service.clone();
        let ended = Arc::clone(&ended);
        let committed = Arc::clone(&committed);
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(task));
        tokio::spawn(async move {
            for number in 0.. {
                let cancelled = ended.load(Ordering::Relaxed);
                let done = committed.load(Ordering::Relaxed);
                if cancelled >= due && done > 0 {
                    break;
                }
                ensure!(start.elapsed() < PATIENCE, "{cancelled} handlers were cancelled, {done} were in time");
                // On a machine where no handler is in time, handlers get more and more time.
                let longest = 30_000 + if done == 0 { 1000 * cancelled } else { 0 };
                let patience = Duration::from_micros(random.random_range(0..longest));
                match tokio::time::timeout(patience, service.handle(number)).await {
                    Ok(done) => done.map(|()| committed.fetch_add(1, Ordering::Relaxed))?,
                    Err(_) => ended.fetch_add(1, Ordering::Relaxed),
                };
            }
            anyhow::Ok(())
        })
    });
    for task in join_all(tasks).await {
        task??;
    }
    arena.counts.faults += ended.load(Ordering::Relaxed);
    // The ledger does not know the outcome of a cancelled transaction.
    let within = arena.ledger.count(Outcome::Unknown);
    arena.witness("a handler cancelled within its transaction", within > 0);
    nothing_is_open(&service).await
}

/// All connections of the pool are available at once, and none is in a transaction.
async fn nothing_is_open(service: &Service) -> Result<()> {
    let mut connections = Vec::new();
    for _ in 0..POOL {
        let mut connection = service.pool.acquire().await?;
        // Refused within a transaction, even an empty one.
        let alone = sqlx::raw_sql("SET TRANSACTION READ WRITE").execute(&mut *connection).await;
        alone.context("a connection of the pool is in a transaction")?;
        connections.push(connection);
    }
    Ok(())
}

async fn deadlock(arena: &mut Arena) -> Result<()> {
    arena.start().await?;
    arena.database.execute("INSERT INTO test_keys (id, sequence) VALUES (1, 0), (2, 0), (3, 0)").await?;
    let service = Service::new(arena).await?;
    arena.strike().await?;
    let mut other = arena.database.connect().await?;
    let mut held = other.begin().await?;
    sqlx::query(LOCK).bind(1_u64).execute(&mut *held).await?;
    let seed = arena.random.random::<u64>();
    let each = if arena.setup.pace == Pace::Full { 100 } else { 20 };
    let tasks = (0..u64::from(POOL)).map(|task| {
        let service = service.clone();
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(task));
        tokio::spawn(async move {
            for _ in 0..each {
                let first = random.random_range(1..=3);
                let second = 1 + first % 3;
                service.swallow([first, second]).await?;
            }
            anyhow::Ok(())
        })
    });
    let tasks = join_all(tasks);
    // The row is held until their lock waits have timed out; deadlocks follow.
    until(PATIENCE, "lock waits to time out", || async {
        let lock_waits = service.lock_waits.load(Ordering::Relaxed);
        ensure!(lock_waits >= u64::from(POOL), "{lock_waits} have");
        Ok(())
    })
    .await?;
    held.rollback().await?;
    for task in tasks.await {
        task??;
    }
    let [deadlocks, lock_waits] = [&service.deadlocks, &service.lock_waits].map(|count| count.load(Ordering::Relaxed));
    arena.counts.faults += deadlocks + lock_waits;
    arena.witness("a swallowed deadlock", deadlocks > 0);
    arena.witness("a swallowed lock wait", lock_waits > 0);
    Ok(())
}
