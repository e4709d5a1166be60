//! D6: the database answers, but refuses.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures_util::FutureExt as _;
use outbox_core::sqlx::{self, AssertSqlSafe, MySqlConnection};
use testkit::{
    consume::Broker,
    servers::{Flavor, free_port},
};

use super::between::{alive, progress, readiness, recovery};
use crate::{
    arena::Arena,
    row::{Case, Row},
};

/// Relays report a refusal for 15 s after the last one.
const RECOVERED: Duration = Duration::from_secs(20);

/// How a database refuses, and what `/readyz` says then.
#[derive(Debug, Clone, Copy)]
struct Refusal {
    strike: &'static str,
    heal: &'static str,
    named: &'static str,
    /// Affects only new connections: existing ones must end.
    connections: bool,
}

const READ_ONLY: Refusal = Refusal {
    strike: "SET GLOBAL read_only = 1",
    heal: "SET GLOBAL read_only = 0",
    named: "read-only",
    connections: false,
};
const NO_CONNECTIONS: Refusal = Refusal {
    strike: "SET GLOBAL max_connections = 10",
    heal: "SET GLOBAL max_connections = 500",
    named: "connections",
    connections: true,
};
const PASSWORD: Refusal = Refusal {
    strike: "ALTER USER outbox_relay@'%' IDENTIFIED BY 'another', outbox_relay_process@'%' IDENTIFIED BY 'another', \
             outbox_relay_tail@'%' IDENTIFIED BY 'another'",
    heal: "ALTER USER outbox_relay@'%' IDENTIFIED BY 'correct-horse_8', \
           outbox_relay_process@'%' IDENTIFIED BY 'correct-horse_8', \
           outbox_relay_tail@'%' IDENTIFIED BY 'correct-horse_8'",
    named: "Access denied",
    connections: true,
};

/// A group of one server, in single-primary mode.
const GROUP: &[&str] = &[
    "--plugin-load-add=group_replication.so",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--report-host=127.0.0.1",
    "--loose-group-replication-group-name=5a1d3e62-9b0c-4c1f-8f6d-0f6f6f1f7a11",
];
const START: &str = "SET GLOBAL group_replication_bootstrap_group = ON; START GROUP_REPLICATION; \
                     SET GLOBAL group_replication_bootstrap_group = OFF";
/// A member outside of its group has `super_read_only`: error 1290.
const NO_GROUP: Refusal =
    Refusal { strike: "STOP GROUP_REPLICATION", heal: START, named: "read-only", connections: false };
/// The group takes no transaction: error 3231.
const NO_COMMIT: Refusal = Refusal {
    strike: "SET GLOBAL group_replication_transaction_size_limit = 1",
    heal: "SET GLOBAL group_replication_transaction_size_limit = 150000000",
    named: "group_replication_transaction_size_limit",
    connections: false,
};

pub(super) fn row() -> Row {
    let mut cases = Vec::new();
    for (flavor, broker) in [(Flavor::MySql, Broker::Kafka), (Flavor::MariaDb, Broker::RabbitMq)] {
        for (name, refusal) in
            [("read-only", READ_ONLY), ("no connection left", NO_CONNECTIONS), ("password rotated", PASSWORD)]
        {
            let case = Case::new(name, move |arena| refused(arena, flavor, refusal).boxed());
            let case = case.on(flavor, broker).own_database();
            let short = flavor == Flavor::MySql && !refusal.connections;
            cases.push(if short { case.short() } else { case });
        }
    }
    let full = Case::new("disk full", |arena| full(arena).boxed()).own_database_with(&[
        "--innodb-data-file-path=ibdata1:12M:autoextend:max:32M",
        "--innodb-autoextend-increment=1",
    ]);
    cases.push(full);
    for (name, refusal) in [("group left", NO_GROUP), ("commits refused by the group", NO_COMMIT)] {
        cases.push(Case::new(name, move |arena| of_a_group(arena, refusal).boxed()).own_database_with(GROUP));
    }
    Row {
        id: "D6",
        fault: "read-only flip; max_connections exhausted; password rotated; no room for receipts; Group Replication \
                stopped, and refusing commits",
        shows: "a clear state in /readyz; recovers by itself",
        cases,
    }
}

async fn of_a_group(arena: &mut Arena, refusal: Refusal) -> Result<()> {
    let mut admin = arena.database.connect_as_admin().await?;
    let port = free_port()?;
    run(&mut admin, &format!("SET GLOBAL group_replication_local_address = '127.0.0.1:{port}'; {START}")).await?;
    refused(arena, Flavor::MySql, refusal).await
}

async fn refused(arena: &mut Arena, flavor: Flavor, refusal: Refusal) -> Result<()> {
    let mut admin = arena.database.connect_as_admin().await?;
    // Before it is read-only, the server waits for statements. These wait for locks of transactions that it holds up,
    // and only a time-out ends this circle.
    run(&mut admin, "SET GLOBAL innodb_lock_wait_timeout = 3").await?;
    arena.start_relays(2)?;
    arena.start_load().await?;
    arena.working().await?;
    for _ in 0..2 {
        arena.strike().await?;
        run(&mut admin, refusal.strike).await?;
        if refusal.connections {
            end_connections(&mut admin, flavor).await?;
        }
        readiness(arena, refusal.named, |status, body| status == 503 && body.contains(refusal.named)).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        alive(arena).await?;
        run(&mut admin, refusal.heal).await?;
        recovery(arena, RECOVERED).await?;
        progress(arena, 50.0).await?;
    }
    // A refusal longer than a lease leads to take-overs.
    arena.duplicates_are_announced();
    Ok(())
}

/// The table of the receipts has no room any more. Sent messages cannot be marked as sent.
async fn full(arena: &mut Arena) -> Result<()> {
    let mut admin = arena.database.connect_as_admin().await?;
    run(&mut admin, "ALTER TABLE outbox_sent TABLESPACE innodb_system").await?;
    arena.start_relays(2)?;
    arena.start_load().await?;
    arena.working().await?;
    for _ in 0..2 {
        arena.strike().await?;
        run(&mut admin, "CREATE TABLE filler (text LONGBLOB) TABLESPACE innodb_system").await?;
        for bytes in [1_000_000, 10_000, 1000, 10] {
            let fill = format!("INSERT INTO filler VALUES (REPEAT('x', {bytes}))");
            while !is_full(run(&mut admin, &fill).await)? {}
        }
        readiness(arena, "a full table", |status, body| status == 503 && body.contains("is full")).await?;
        alive(arena).await?;
        run(&mut admin, "DROP TABLE filler").await?;
        recovery(arena, RECOVERED).await?;
        progress(arena, 50.0).await?;
    }
    arena.duplicates_are_announced();
    Ok(())
}

fn is_full(filled: Result<()>) -> Result<bool> {
    let Err(error) = filled else { return Ok(false) };
    if format!("{error:#}").contains("is full") { Ok(true) } else { Err(error) }
}

/// Ends all connections of relays, producers and consumers, and lets hardly any client in for this duration.
pub(super) async fn no_connection_left(arena: &mut Arena, flavor: Flavor, time: Duration) -> Result<()> {
    let mut admin = arena.database.connect_as_admin().await?;
    arena.strike().await?;
    run(&mut admin, NO_CONNECTIONS.strike).await?;
    end_connections(&mut admin, flavor).await?;
    tokio::time::sleep(time).await;
    run(&mut admin, NO_CONNECTIONS.heal).await?;
    arena.recovered(Instant::now(), RECOVERED).await
}

/// Ends the connections of relays and services.
async fn end_connections(admin: &mut MySqlConnection, flavor: Flavor) -> Result<()> {
    let sql = match flavor {
        // Not from the process list: MySQL refuses to show it while a statement in it binds a value that is not text.
        Flavor::MySql => {
            "SELECT CAST(processlist_id AS UNSIGNED) FROM performance_schema.threads \
             WHERE processlist_user LIKE 'outbox%'"
        }
        Flavor::MariaDb => "SELECT CAST(id AS UNSIGNED) FROM information_schema.processlist WHERE user LIKE 'outbox%'",
    };
    let ids: Vec<u64> = sqlx::query_scalar(sql).fetch_all(&mut *admin).await?;
    for id in ids {
        // A connection that has just ended cannot be killed.
        run(admin, &format!("KILL {id}")).await.ok();
    }
    Ok(())
}

async fn run(admin: &mut MySqlConnection, sql: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(admin).await.with_context(|| sql.to_owned())?;
    Ok(())
}
