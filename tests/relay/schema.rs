//! Tables that a relay cannot use: it changes nothing, and reports their faults.

use anyhow::{Context as _, Result, ensure};
use outbox_core::{MIGRATIONS, SCHEMA_VERSION};
use testkit::{
    consume::Broker,
    database::Database,
    judge::Expectations,
    on_both_databases,
    relay::{Relay, Settings},
    servers::{Flavor, until},
    upgrade,
};

use crate::stage::{PATIENCE, Stage, start};

on_both_databases!(
    tables_that_can_be_mended_are_waited_for_and_what_is_wrong_is_told,
    a_counter_that_would_give_ids_again_is_waited_for_and_its_remedy_told,
    a_relay_ends_where_the_tables_do_not_serve_its_release,
    a_relay_of_the_release_before_works_on_the_tables_of_the_next,
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

/// The faults are found in this order, and repaired one by one under the waiting relay.
async fn tables_that_can_be_mended_are_waited_for_and_what_is_wrong_is_told(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let owner = "ALTER TABLE outbox_leases MODIFY owner VARCHAR(100) CHARACTER SET";
    let wrong = format!(
        "{owner} utf8mb4 COLLATE utf8mb4_general_ci NOT NULL; ALTER TABLE outbox_leases ENGINE = MyISAM; \
         UPDATE outbox_migrations SET version = -1 \
         WHERE version = {SCHEMA_VERSION}; RENAME TABLE outbox_migrations TO hidden"
    );
    database.execute(&wrong).await?;
    let relay = started(&database)?;
    let older = format!(
        "the outbox tables have version {}, this program needs {SCHEMA_VERSION}: run `relay migrate up`",
        MIGRATIONS.iter().rev().nth(1).context("one migration")?.0
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
            "the column outbox_leases.owner has the collation utf8mb4_general_ci, which takes different texts for the \
             same: give it the one that `relay migrate sql` prints",
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
        "the next message would get the id 1, and the tables name message 77: stop the services, run `{remedy}`, and \
         start them again"
    );
    readiness(&relay, 503, &format!("database: {problem}\n")).await?;
    database.execute(remedy).await?;
    readiness(&relay, 200, "ok\n").await
}

async fn a_relay_ends_where_the_tables_do_not_serve_its_release(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let newer = format!(
        "the outbox tables serve programs that know version 99 or a later one, this program knows {SCHEMA_VERSION}: \
         install a newer release"
    );
    for (edit, problem) in [
        ("UPDATE outbox_schema SET smallest_writer = 99", newer.as_str()),
        (
            "UPDATE outbox_migrations SET checksum = 'other' WHERE version = 3",
            "migration 3 was applied with another text than this release has: these tables were made by another build, \
             see `relay migrate baseline`",
        ),
    ] {
        database.execute(edit).await?;
        let mut relay = started(&database)?;
        let status = relay.wait_for_end(PATIENCE).await?;
        let log = relay.log()?;
        ensure!(status.code() == Some(1) && log.lines().next_back() == Some(problem), "{status}: {log}");
    }
    Ok(())
}

/// The relay ran when the tables were upgraded, and is started again on them; so is the service.
async fn a_relay_of_the_release_before_works_on_the_tables_of_the_next(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?;
    let relay = stage.relay()?;
    stage.commit(&[stage.draft(1)]).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    upgrade::to_next(&stage.database).await?;
    stage.commit(&[stage.draft(2)]).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    drop(relay);
    outbox_core::migrate(&mut stage.database.connect().await?).await?;
    let relay = stage.relay()?;
    readiness(&relay, 200, "ok\n").await?;
    stage.commit(&[stage.draft(3)]).await?;
    stage.drain_and_judge(&Expectations::new().at_least(3)).await
}
