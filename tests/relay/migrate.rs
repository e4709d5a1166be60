//! `relay migrate` as operators run it: the program, a real server, and SIGKILL at every statement.

use std::{
    collections::HashSet,
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{MIGRATIONS, SCHEMA_VERSION, check_schema, migration_script};
use testkit::{
    database::Database,
    on_both_databases,
    proxy::Proxy,
    relay::Settings,
    servers::{Flavor, MySqlOptions, until},
    upgrade,
};

use crate::{doctor::examine, stage::PATIENCE};

on_both_databases!(
    a_migration_that_is_killed_at_any_statement_is_completed_by_the_next_one,
    the_plan_is_printed_before_anything_is_changed,
    what_the_command_prints_another_tool_applies,
    tables_without_their_record_are_adopted_or_their_difference_is_told,
    small_pages_are_told_before_anything_is_made,
    all_tables_are_made_whatever_the_default_row_format_is,
);

/// Makes the command `relay migrate` with these arguments, for the database at this address.
fn command(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_relay"));
    command.arg("migrate").args(arguments).env("RELAY__DATABASE__URL", url).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns exit code, standard output and standard error.
fn migrate(database: &Database, arguments: &[&str]) -> Result<(Option<i32>, String, String)> {
    texts(command(database.url(), arguments).output()?)
}

fn texts(Output { status, stdout, stderr }: Output) -> Result<(Option<i32>, String, String)> {
    Ok((status.code(), String::from_utf8(stdout)?, String::from_utf8(stderr)?))
}

fn succeeds(database: &Database, arguments: &[&str]) -> Result<String> {
    let (code, out, err) = migrate(database, arguments)?;
    ensure!(code == Some(0), "{arguments:?} ended with {code:?}: {out}{err}");
    Ok(out)
}

const MADE: &str = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()";

/// Keys of 1,536 bytes at most fit into a page of 8 KiB.
async fn small_pages_are_told_before_anything_is_made(flavor: Flavor) -> Result<()> {
    let options = MySqlOptions::new(flavor).buffer_pool_mib(64).arg("--innodb-page-size=8k");
    let server = options.start().await?;
    let database = Database::create_empty_on(&server.url()).await?;
    let (code, _, err) = migrate(&database, &["up"])?;
    ensure!(code == Some(1) && err.contains("innodb_page_size is 8192"), "{code:?}: {err}");
    ensure!(database.number(MADE).await? == 0, "something was made");
    let settings = Settings::new(database.url()).kafka("127.0.0.1:1");
    let found = examine(&settings.route([("topics", "*"), ("sink", "kafka"), ("topic", "{topic}")])).await?;
    ensure!(found.contains_key("small_pages") && !found.contains_key("schema"), "{found:#?}");
    Ok(())
}

/// A table that is made in these formats has keys of 767 bytes at most.
async fn all_tables_are_made_whatever_the_default_row_format_is(flavor: Flavor) -> Result<()> {
    let format = if flavor == Flavor::MySql { "REDUNDANT" } else { "COMPACT" };
    let options = MySqlOptions::new(flavor).buffer_pool_mib(64);
    let server = options.arg(&format!("--innodb-default-row-format={format}")).start().await?;
    let database = Database::create_empty_on(&server.url()).await?;
    succeeds(&database, &["up"])?;
    check_schema(&mut database.connect().await?).await?;
    let other = format!("{MADE} AND row_format <> 'Dynamic' AND table_name <> 'outbox_migrations'");
    ensure!(database.number(&other).await? == 0, "the format of the server is that of tables");
    Ok(())
}

/// The server has received the statement, and the program dies before it gets the answer.
async fn a_migration_that_is_killed_at_any_statement_is_completed_by_the_next_one(flavor: Flavor) -> Result<()> {
    let database = Database::create_empty(flavor).await?;
    let proxy = Proxy::start(database.url()).await?;
    // Rows written without a record are written again; that is killed once each.
    let rows = Arc::new(Mutex::new(HashSet::new()));
    let mut kills = 0;
    loop {
        let child: Arc<Mutex<Option<Child>>> = Arc::default();
        let victim = Arc::clone(&child);
        let rows = Arc::clone(&rows);
        proxy.cut_replies(1, move |packet| {
            let new = || rows.lock().unwrap_or_else(PoisonError::into_inner).insert(packet.to_vec());
            let meant = upgrade::changes(packet) && (!upgrade::writes_rows(packet) || new());
            let mut victim = victim.lock().unwrap_or_else(PoisonError::into_inner);
            meant && victim.as_mut().is_some_and(|victim| victim.kill().is_ok())
        });
        let child = tokio::task::spawn_blocking({
            let url = proxy.address().to_owned();
            move || {
                // No packet is read until the child is in its place.
                let mut place = child.lock().unwrap_or_else(PoisonError::into_inner);
                *place = Some(command(&url, &["up"]).spawn()?);
                drop(place);
                anyhow::Ok(child)
            }
        });
        let child = child.await??;
        let (code, out, err) = end(&child).await?;
        proxy.heal();
        match code {
            Some(0) => break,
            None => kills += 1,
            Some(_) => anyhow::bail!("after {kills} kills: {out}{err}"),
        }
    }
    // Every statement, each record, and the record's own table.
    assert_eq!(kills, 2 * MIGRATIONS.len() + 1);
    check_schema(&mut database.connect().await?).await?;
    succeeds(&database, &["status"])?;
    succeeds(&database, &["baseline"])?;
    Ok(())
}

/// Waits for the end of a child that another task may kill meanwhile.
async fn end(child: &Mutex<Option<Child>>) -> Result<(Option<i32>, String, String)> {
    let ended = || {
        let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
        let child = child.as_mut().context("there is no child")?;
        child.try_wait()?.context("it runs")
    };
    until(PATIENCE, "the migration to end", async || ended()).await?;
    let child = child.lock().unwrap_or_else(PoisonError::into_inner).take().context("there is no child")?;
    texts(child.wait_with_output()?)
}

async fn the_plan_is_printed_before_anything_is_changed(flavor: Flavor) -> Result<()> {
    let database = Database::create_empty(flavor).await?;
    database.execute("CREATE TABLE outbox_dead (id INT PRIMARY KEY)").await?;
    let (code, out, err) = migrate(&database, &["up"])?;
    ensure!(code == Some(1) && err.contains("nothing was changed"), "{code:?}: {err}");
    ensure!(out.lines().count() == MIGRATIONS.len(), "{out}");
    for line in [
        "Migration 1 (messages) creates the table outbox_messages.",
        "Migration 4 (dead) cannot be applied: the table outbox_dead lacks ",
        "Migration 23 (claimed_messages) creates the view outbox_claimed_messages.",
        "Migration 28 (baseline) writes rows.",
    ] {
        ensure!(out.contains(line), "{line} is not in\n{out}");
    }
    assert_eq!(
        database.number("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()").await?,
        1
    );
    database.execute("DROP TABLE outbox_dead").await?;
    let out = succeeds(&database, &["up"])?;
    let made = format!("The outbox tables are made: version {SCHEMA_VERSION}.\n");
    assert_eq!(out, made, "there is no plan where there is no table");
    let done = format!("The outbox tables have version {SCHEMA_VERSION} or a later one.\n");
    assert_eq!(succeeds(&database, &["up"])?, done);
    Ok(())
}

async fn what_the_command_prints_another_tool_applies(flavor: Flavor) -> Result<()> {
    let database = Database::create_empty(flavor).await?;
    let script = succeeds(&database, &["sql"])?;
    assert_eq!(script, migration_script(0));
    assert_eq!(succeeds(&database, &["sql", "--after", "16"])?, migration_script(16));
    assert_eq!(migrate(&database, &["status"])?.0, Some(3));
    for statement in script.split_inclusive(";\n") {
        database.execute(statement).await.with_context(|| statement.to_owned())?;
    }
    succeeds(&database, &["status"])?;
    check_schema(&mut database.connect().await?).await?;
    let done = format!("The outbox tables have version {SCHEMA_VERSION} or a later one.\n");
    assert_eq!(succeeds(&database, &["up"])?, done, "nothing is left to do");
    Ok(())
}

async fn tables_without_their_record_are_adopted_or_their_difference_is_told(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    database.execute("DROP TABLE outbox_migrations; ALTER TABLE outbox_dead DROP KEY outbox_dead_key").await?;
    let (code, out, err) = migrate(&database, &["baseline"])?;
    assert_eq!((code, out.as_str()), (Some(1), ""));
    ensure!(err.starts_with("the tables could not be adopted: nothing was changed"), "{err}");
    ensure!(err.contains("the table outbox_dead lacks `key outbox_dead_key"), "{err}");
    assert_eq!(migrate(&database, &["status"])?.0, Some(3));
    database.execute("ALTER TABLE outbox_dead ADD KEY outbox_dead_key (lane, holds_key, key_hash, id)").await?;
    let done = format!("The outbox tables have version {SCHEMA_VERSION}, and that is recorded.\n");
    assert_eq!(succeeds(&database, &["baseline"])?, done);
    succeeds(&database, &["status"])?;
    check_schema(&mut database.connect().await?).await?;
    Ok(())
}
