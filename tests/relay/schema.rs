//! Tables that a relay cannot use: it touches nothing, and says what is wrong with them.

use anyhow::{Context as _, Result, ensure};
use outbox_core::SCHEMA_VERSION;
use testkit::{
    database::Database,
    on_both_databases,
    relay::{Relay, Settings},
    servers::{Flavor, until},
};

use crate::stage::{PATIENCE, start};

on_both_databases!(
    tables_that_can_be_mended_are_waited_for_and_what_is_wrong_is_told,
    a_relay_ends_where_its_release_does_not_know_the_tables,
    a_counter_that_would_give_ids_again_is_waited_for_and_its_remedy_told,
);

fn started(database: &Database) -> Result<Relay> {
    start(&Settings::new(database.url()).null().route([("topics", "*"), ("sink", "null")]))
}

async fn readiness(relay: &Relay, status: u16, page: &str) -> Result<()> {
    let asked = until(PATIENCE, page, || async {
        let found = relay.get("/readyz").await?;
        ensure!(found == (status, page.to_owned()), "{found:?}");
        Ok(())
    });
    asked.await.with_context(|| relay.log().unwrap_or_default())
}

/// What is wrong is found in this order, and mended one by one under the relay that waits.
async fn tables_that_can_be_mended_are_waited_for_and_what_is_wrong_is_told(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let owner = "ALTER TABLE outbox_leases MODIFY owner VARCHAR(100) CHARACTER SET";
    let wrong = format!(
        "{owner} utf8mb4 COLLATE utf8mb4_general_ci NOT NULL; ALTER TABLE outbox_leases ENGINE = MyISAM; \
         UPDATE outbox_migrations SET version = -1 WHERE version = {SCHEMA_VERSION}; RENAME TABLE outbox_migrations TO hidden"
    );
    database.execute(&wrong).await?;
    let relay = started(&database)?;
    let older = format!(
        "the outbox tables have version {}, this program needs {SCHEMA_VERSION}: run `relay migrate up`",
        SCHEMA_VERSION - 1
    );
    let migrated = format!("UPDATE outbox_migrations SET version = {SCHEMA_VERSION} WHERE version = -1");
    let binary = format!("{owner} ascii COLLATE ascii_bin NOT NULL");
    for (problem, mended) in [
        (
            "the outbox tables do not exist in this database: run `relay migrate up`",
            "RENAME TABLE hidden TO outbox_migrations",
        ),
        (older.as_str(), migrated.as_str()),
        (
            "the table outbox_leases has the engine MyISAM: run `ALTER TABLE outbox_leases ENGINE = InnoDB`",
            "ALTER TABLE outbox_leases ENGINE = InnoDB",
        ),
        (
            "the column outbox_leases.owner has the collation utf8mb4_general_ci, which takes different texts for the same: \
             give it the one of migrations/0001_outbox.sql",
            binary.as_str(),
        ),
    ] {
        readiness(&relay, 503, &format!("database: {problem}\n")).await?;
        database.execute(mended).await?;
    }
    readiness(&relay, 200, "ok\n").await
}

async fn a_counter_that_would_give_ids_again_is_waited_for_and_its_remedy_told(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    database.execute("INSERT INTO outbox_pending (lane, id) VALUES (3, 77)").await?;
    let relay = started(&database)?;
    let remedy = "ALTER TABLE outbox_messages AUTO_INCREMENT = 78";
    let problem = format!(
        "the next message would get the id 1, and the tables name message 77: stop the services, run `{remedy}`, and start them again"
    );
    readiness(&relay, 503, &format!("database: {problem}\n")).await?;
    database.execute(remedy).await?;
    readiness(&relay, 200, "ok\n").await
}

async fn a_relay_ends_where_its_release_does_not_know_the_tables(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let later = format!("UPDATE outbox_migrations SET version = 99 WHERE version = {SCHEMA_VERSION}");
    let newer =
        format!("the outbox tables have version 99, this program knows only {SCHEMA_VERSION}: install a newer release");
    for (edit, problem) in [
        (later.as_str(), newer.as_str()),
        (
            "UPDATE outbox_migrations SET success = FALSE WHERE version = 99",
            "migration 99 of the outbox tables stopped half-way: repair it by hand (see migrations/README.md)",
        ),
    ] {
        database.execute(edit).await?;
        let mut relay = started(&database)?;
        let (status, log) = (relay.wait_for_end(PATIENCE).await?, relay.log()?);
        ensure!(status.code() == Some(1) && log.lines().next_back() == Some(problem), "{status}: {log}");
    }
    Ok(())
}
