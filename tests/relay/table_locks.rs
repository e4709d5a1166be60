//! Another session has locked a table of the outbox: relays and commands name it, and take no more connections.

use anyhow::{Result, ensure};
use outbox_core::sqlx::{self, Executor as _};
use tempfile::NamedTempFile;
use testkit::{
    accounts::Account,
    database::Database,
    on_both_databases,
    relay::{Client, Relay, Settings},
    servers::{Flavor, until},
};

use crate::{
    doctor::examine,
    stage::{PATIENCE, client, start},
};

on_both_databases!(a_locked_table_is_named_and_costs_no_connections, an_alter_that_waits_for_a_reader_is_named);

const NAMED: &str = "another session has locked outbox_claims";

async fn errors(relays: &[Relay]) -> Result<f64> {
    let mut sum = 0.0;
    for relay in relays {
        sum += relay.metrics().await?.sum("outbox_relay_db_errors_total");
    }
    Ok(sum)
}

/// Returns what a command prints, however it ends.
async fn told(client: &Client, words: &str) -> Result<String> {
    let output = tokio::time::timeout(PATIENCE, client.run(words, &[])).await??;
    Ok([output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned()).concat())
}

async fn a_locked_table_is_named_and_costs_no_connections(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let url = database.url_as(Account::Relay)?;
    let settings = Settings::new(&url).patient().null().route([("topics", "*"), ("sink", "null")]);
    let relays = [start(&settings)?, start(&settings)?];
    for relay in &relays {
        until(PATIENCE, "a relay to be ready", || async {
            let (status, body) = relay.get("/readyz").await?;
            ensure!(status == 200, "{body}");
            Ok(())
        })
        .await?;
    }
    let mut console = database.plain().await?;
    for how in ["READ", "WRITE"] {
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("LOCK TABLES outbox_claims {how}"))).execute(&mut console).await?;
        let status = told(&client(&*url), "status").await?;
        ensure!(status.contains(NAMED), "{how}: {status}");
    }
    for relay in &relays {
        until(PATIENCE, "a relay to name the table", || async {
            let (status, body) = relay.get("/readyz").await?;
            ensure!(status == 503 && body.contains(NAMED), "{status} {body}");
            Ok(())
        })
        .await?;
    }
    let connections = format!("SELECT COUNT(*) FROM {}", flavor.sessions());
    let before = database.number(&connections).await?;
    let failed = errors(&relays).await?;
    let viewer = client(database.url_as(Account::Operator)?);
    for words in ["status", "why 1", "messages list", "pending list", "keys blocked", "jobs", "purge --dry-run"] {
        let told = told(&viewer, words).await?;
        ensure!(!told.contains("Lock wait"), "{words}: {told}");
        ensure!(words != "status" || told.contains(NAMED), "{words}: {told}");
    }
    let file = NamedTempFile::new()?;
    std::fs::write(&file, settings.render(1)?)?;
    let checked = told(&client(&*url), &format!("check --connect --config {}", file.path().display())).await?;
    ensure!(checked.contains(NAMED), "{checked}");
    let found = examine(&settings).await?;
    ensure!(found.contains_key("table_locked"), "{found:?}");
    if flavor == Flavor::MySql {
        let told = told(&client(database.url()), "status").await?;
        ensure!(told.contains("of root@") && told.contains("or KILL "), "{told}");
    }
    // Each of these calls left a connection behind before its wait had an end.
    until(PATIENCE, "calls to fail", || async {
        let more = errors(&relays).await? - failed;
        ensure!(more >= 6.0, "{more}");
        Ok(())
    })
    .await?;
    let after = database.number(&connections).await?;
    ensure!(after <= before + 4, "{after} connections, {before} before");
    Ok(())
}

/// It bars all others, although it has no lock yet.
async fn an_alter_that_waits_for_a_reader_is_named(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let operator = client(database.url_as(Account::Operator)?);
    let mut reader = database.plain().await?;
    let mut waits = database.plain().await?;
    sqlx::raw_sql("BEGIN; SELECT 1 FROM outbox_claims LIMIT 1").execute(&mut reader).await?;
    let alters =
        tokio::spawn(async move { waits.execute("ALTER TABLE outbox_claims COMMENT = 'tried'").await.map(drop) });
    until(PATIENCE, "the ALTER to be named", || async {
        let status = told(&operator, "status").await?;
        ensure!(status.contains(NAMED), "{status}");
        Ok(())
    })
    .await?;
    sqlx::raw_sql("ROLLBACK").execute(&mut reader).await?;
    Ok(alters.await??)
}
