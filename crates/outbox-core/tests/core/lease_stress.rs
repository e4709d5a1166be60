//! Holders of a lease that are killed and paused, and a database whose clock jumps: no two work at once, and what a
//! late one writes is refused.
//!
//! The holders are other processes: this program, run again with the address of a database.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    lease::{Lease, LeaseError, Leases},
    sqlx::{self, Connection as _, MySqlConnection},
};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process};
use testkit::{
    accounts::Account,
    database::Database,
    on_both_databases,
    servers::{Flavor, PATIENCE, until},
};

on_both_databases!(holders_that_are_killed_paused_or_see_the_clock_jump_exclude_each_other);

const HOLDER: &str = "OUTBOX_TEST_HOLDER";
const LENGTH: Duration = Duration::from_secs(1);
/// So many faults, each kind in turn.
const FAULTS: usize = 8;

/// The ends of leases as they look after the database's clock was set by an hour.
const CLOCK_BACK: &str = "UPDATE outbox_leases SET lease_until = lease_until + INTERVAL 1 HOUR";
const CLOCK_FORWARD: &str = "UPDATE outbox_leases SET lease_until = lease_until - INTERVAL 1 HOUR";

/// `cell` is a resource that knows the fence; `by_fence` is what it took, `refused` what it did not; `checked` is what
/// was written in transactions that check the lease. A holder that stands in `paused` stops itself, outside of its
/// transactions: one that was stopped inside of one holds the others up by its locks, and nobody takes over.
const TABLES: &str = "\
    CREATE TABLE cell (id INT PRIMARY KEY, fence BIGINT UNSIGNED NOT NULL); INSERT INTO cell VALUES (1, 0); \
    CREATE TABLE by_fence (id BIGINT AUTO_INCREMENT PRIMARY KEY, fence BIGINT UNSIGNED NOT NULL, \
    pid INT UNSIGNED NOT NULL); \
    CREATE TABLE checked (id BIGINT AUTO_INCREMENT PRIMARY KEY, fence BIGINT UNSIGNED NOT NULL, \
    pid INT UNSIGNED NOT NULL, \
        KEY (fence)); \
    CREATE TABLE refused (id BIGINT AUTO_INCREMENT PRIMARY KEY, fence BIGINT UNSIGNED NOT NULL, \
    pid INT UNSIGNED NOT NULL, way VARCHAR(10) NOT NULL); \
    CREATE TABLE paused (pid INT UNSIGNED NOT NULL, way VARCHAR(10) NOT NULL, PRIMARY KEY (pid, way))";

async fn holders_that_are_killed_paused_or_see_the_clock_jump_exclude_each_other(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    database.execute(TABLES).await?;
    let mut holders = vec![Holder::start(&database)?, Holder::start(&database)?, Holder::start(&database)?];
    for fault in 0..FAULTS {
        let (fence, pid) = wait_for_a_write_above(&database, 0).await?;
        let holder = holders.iter_mut().find(|holder| holder.0.id() == pid).context("a holder that was not started")?;
        if fault % 4 == 0 {
            *holder = Holder::start(&database)?;
            wait_for_a_write_above(&database, fence).await?;
        } else if fault % 4 == 2 {
            database.execute(CLOCK_BACK).await?;
            // The holder's next renewal ends it in time again; nobody else may have it before.
            let renewed = "SELECT COUNT(*) FROM outbox_leases WHERE lease_until < UTC_TIMESTAMP(6) + INTERVAL 1 MINUTE";
            database.wait_for(PATIENCE, renewed).await?;
            database.execute(CLOCK_FORWARD).await?;
            wait_for_a_write_above(&database, fence).await?;
        } else {
            let way = if fault % 4 == 1 { "fence" } else { "check" };
            database.execute(&format!("INSERT INTO paused VALUES ({pid}, '{way}')")).await?;
            wait_for_a_write_above(&database, fence).await?;
            database.execute("DELETE FROM paused").await?;
            // It goes on with what it was about to do, and learns that it is late by being refused.
            let refused = format!("SELECT COUNT(*) FROM refused WHERE pid = {pid} AND fence = {fence}");
            until(PATIENCE, "the refusal of a holder that was paused", async || {
                holder.go_on()?;
                ensure!(database.number(&refused).await? > 0, "it was not refused");
                Ok(())
            })
            .await?;
        }
    }
    drop(holders);
    assert_one_at_a_time(&database, "by_fence").await?;
    assert_one_at_a_time(&database, "checked").await
}

/// The newest write whose fence is larger, with the process that wrote it; both ways of writing were used by then.
async fn wait_for_a_write_above(database: &Database, fence: u64) -> Result<(u64, u32)> {
    until(PATIENCE, "a write of a new holder", async || {
        let mut connection = database.plain().await?;
        let sql = "SELECT f.fence, f.pid FROM by_fence f JOIN checked c ON c.fence = f.fence \
                   WHERE f.fence > ? ORDER BY f.id DESC LIMIT 1";
        let newest: Option<(u64, u32)> = sqlx::query_as(sql).bind(fence).fetch_optional(&mut connection).await?;
        connection.close().await?;
        newest.context("nobody wrote")
    })
    .await
}

/// Writes are in the order of their fences: a holder writes nothing after a later one has written. Each fence has one
/// holder.
async fn assert_one_at_a_time(database: &Database, table: &str) -> Result<()> {
    let count = database.number(&format!("SELECT COUNT(DISTINCT fence) FROM {table}")).await?;
    ensure!(count > i64::try_from(FAULTS)?, "{table}: only {count} holders wrote");
    let late = format!(
        "SELECT COUNT(*) FROM (SELECT fence, MAX(fence) OVER (ORDER BY id) AS newest FROM {table}) w \
         WHERE fence < newest"
    );
    assert_eq!(database.number(&late).await?, 0, "{table}: an earlier holder wrote after a later one");
    let shared =
        format!("SELECT COUNT(*) FROM (SELECT fence FROM {table} GROUP BY fence HAVING COUNT(DISTINCT pid) > 1) s");
    assert_eq!(database.number(&shared).await?, 0, "{table}: two holders with one fence");
    Ok(())
}

/// Another process that holds the lease, as long and as often as it can. Drop kills it.
struct Holder(Child);

impl Holder {
    fn start(database: &Database) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["--exact", "lease_stress::a_holder_writes_until_it_is_refused"])
            .env(HOLDER, database.url_as(Account::Owner)?);
        Ok(Self(command.stdout(Stdio::null()).spawn()?))
    }

    fn go_on(&self) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.0.id())?).context("no process id")?;
        Ok(kill_process(pid, Signal::CONT)?)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// In the other process: for ever. As a test: one holder that is overtaken.
#[tokio::test]
async fn a_holder_writes_until_it_is_refused() -> Result<()> {
    if let Ok(url) = std::env::var(HOLDER) {
        let leases = Leases::new(url.parse::<sqlx::mysql::MySqlConnectOptions>()?).length(LENGTH);
        // Whatever happens: where holders end, nobody takes over.
        let parent = getppid();
        while getppid() == parent {
            if let Err(error) = hold(&url, &leases).await {
                eprintln!("{error:#}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        return Ok(());
    }
    let database = Database::create(Flavor::MySql).await?;
    database.execute(TABLES).await?;
    let leases = Leases::new(database.url_as(Account::Owner)?.parse::<sqlx::mysql::MySqlConnectOptions>()?);
    let lease = leases.acquire("work", PATIENCE).await?;
    database.execute("UPDATE cell SET fence = 7").await?;
    work(&mut database.plain().await?, &lease).await?;
    assert_eq!(database.number("SELECT COUNT(*) FROM refused WHERE fence = 1 AND way = 'fence'").await?, 1);
    assert_eq!(database.number("SELECT COUNT(*) FROM by_fence").await?, 0);
    Ok(())
}

async fn hold(url: &str, leases: &Leases) -> Result<()> {
    let mut connection = MySqlConnection::connect(url).await?;
    sqlx::raw_sql("SET SESSION autocommit = 1").execute(&mut connection).await?;
    loop {
        work(&mut connection, &leases.acquire("work", Duration::MAX).await?).await?;
    }
}

/// Writes in both ways until one is refused. It never asks whether it still holds the lease: it is the careless holder
/// that the fence is for.
async fn work(connection: &mut MySqlConnection, lease: &Lease) -> Result<()> {
    loop {
        pause_before(connection, "fence").await?;
        let by_fence = write_by_fence(connection, lease.fence()).await?;
        if by_fence {
            pause_before(connection, "check").await?;
        }
        if by_fence && write_checked(connection, lease).await? {
            continue;
        }
        let refused = if by_fence { "check" } else { "fence" };
        let sql = "INSERT INTO refused (fence, pid, way) VALUES (?, ?, ?)";
        sqlx::query(sql).bind(lease.fence()).bind(std::process::id()).bind(refused).execute(connection).await?;
        return Ok(());
    }
}

/// Stops this process if it was asked to stop here.
async fn pause_before(connection: &mut MySqlConnection, way: &str) -> Result<()> {
    let sql = "SELECT COUNT(*) > 0 FROM paused WHERE pid = ? AND way = ?";
    // The signal may strike a little after it was sent: nothing else is done before another look.
    while sqlx::query_scalar(sql).bind(std::process::id()).bind(way).fetch_one(&mut *connection).await? {
        kill_process(getpid(), Signal::STOP)?;
    }
    Ok(())
}

/// As a resource elsewhere would: it refuses a fence smaller than the largest that it has seen.
async fn write_by_fence(connection: &mut MySqlConnection, fence: u64) -> Result<bool> {
    let mut tx = connection.begin().await?;
    let sql = "UPDATE cell SET fence = ? WHERE id = 1 AND fence <= ?";
    let taken = sqlx::query(sql).bind(fence).bind(fence).execute(&mut *tx).await?.rows_affected() == 1;
    if taken {
        note(&mut tx, "INSERT INTO by_fence (fence, pid) VALUES (?, ?)", fence).await?;
    }
    tx.commit().await?;
    Ok(taken)
}

/// In the database of the lease. The check comes first here, so that the ids of the rows follow it.
async fn write_checked(connection: &mut MySqlConnection, lease: &Lease) -> Result<bool> {
    let mut tx = connection.begin().await?;
    match lease.check(&mut tx).await {
        Ok(()) => {}
        Err(LeaseError::Lost { .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    note(&mut tx, "INSERT INTO checked (fence, pid) VALUES (?, ?)", lease.fence()).await?;
    tx.commit().await?;
    Ok(true)
}

async fn note(connection: &mut MySqlConnection, sql: &'static str, fence: u64) -> Result<()> {
    sqlx::query(sql).bind(fence).bind(std::process::id()).execute(connection).await?;
    Ok(())
}
