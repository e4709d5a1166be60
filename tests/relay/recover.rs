//! `relay recover`: its plan, its obstacles, and its work.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Message, Outbox,
    sqlx::{self, Connection as _},
};
use serde_json::Value;
use testkit::{consume::Broker, on_both_databases, servers::Flavor};

use crate::stage::{PATIENCE, Stage, account};

on_both_databases!(
    without_consent_the_plan_is_shown_and_nothing_is_changed,
    with_consent_numbers_go_on_in_a_new_epoch,
    what_is_in_the_way_of_a_recovery_is_named,
);

const GRANTS: &str = include_str!("../../deploy/grants/recovery.sql");
/// Everything that a recovery changes, and the number of its notes.
const STATE: &str = "SELECT CAST((SELECT COALESCE(SUM(last_sequence), 0) FROM outbox_key_sequence) + \
                     (SELECT COALESCE(SUM(fence), 0) FROM outbox_leases) + (SELECT COUNT(*) \
                     FROM outbox_epochs) AS SIGNED)";

/// Returns whether it succeeds, and what it prints to both outputs.
fn recover(url: &str, arguments: &[&str]) -> Result<(bool, String, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_relay"));
    let output = command.arg("recover").args(arguments).env("RELAY__DATABASE__URL", url).output()?;
    Ok((output.status.success(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
}

async fn enqueue(stage: &Stage, messages: u32) -> Result<()> {
    let mut connection = stage.database.connect().await?;
    let mut tx = connection.begin().await?;
    let message = |_| Message::new(stage.topic.name(), "x").key("7").sequenced();
    Outbox::new().enqueue_all(&mut tx, (0..messages).map(message)).await?;
    Ok(tx.commit().await?)
}

/// Returns the address of the account that the page of deployment names.
async fn operator(stage: &Stage) -> Result<String> {
    Ok(account(&stage.database, &GRANTS.replace("outbox_recovery", "{user}")).await?.into())
}

async fn without_consent_the_plan_is_shown_and_nothing_is_changed(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    enqueue(&stage, 3).await?;
    let url = operator(&stage).await?;
    let before = stage.database.number(STATE).await?;
    let (ok, out, err) = recover(&url, &["--margin", "50"])?;
    ensure!(ok && err == "Nothing was changed. With --yes the counters are raised and the epoch begins.\n", "{err}");
    let line = |name: &str| out.lines().find(|line| line.split_whitespace().next() == Some(name));
    for (name, value) in [("epoch", "0"), ("margin", "50"), ("new_highest_number", "53"), ("unsent_messages", "3")] {
        let line = line(name).with_context(|| format!("no {name} in {out}"))?;
        ensure!(line.split_whitespace().nth(1) == Some(value), "{line}");
    }
    let unsent = line("0").context("no lane")?;
    ensure!(unsent.contains(stage.topic.name()) && unsent.contains(" 3 "), "{unsent}");
    ensure!(stage.database.number(STATE).await? == before, "something was changed");
    Ok(())
}

async fn with_consent_numbers_go_on_in_a_new_epoch(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?.patient();
    enqueue(&stage, 2).await?;
    let (ok, out, err) = recover(&operator(&stage).await?, &["--margin", "50", "--yes", "--format", "json"])?;
    ensure!(ok && err.contains("has begun"), "{err}");
    let plan: Value = serde_json::from_str(&out)?;
    let value = |place: &str| plan.pointer(place).with_context(|| format!("no {place} in {plan}"));
    let epoch = value("/new_epoch")?.to_string();
    ensure!(value("/unsent_messages")? == 2 && value("/unsent/0/messages")? == 2, "{plan}");
    enqueue(&stage, 2).await?;
    let _relay = stage.relay()?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let header =
        |headers: &[(String, String)], name| headers.iter().find(|(it, _)| it == name).map(|(_, it)| it.clone());
    let arrived = stage.topic.read().await?.iter();
    let arrived: Vec<_> = arrived
        .map(|it| (header(&it.headers, "sequence").unwrap_or_default(), header(&it.headers, "sequence-epoch")))
        .collect();
    let expected = [("1", None), ("2", None), ("53", Some(&epoch)), ("54", Some(&epoch))];
    assert_eq!(arrived, expected.map(|(number, epoch)| (number.to_owned(), epoch.cloned())));
    Ok(())
}

async fn what_is_in_the_way_of_a_recovery_is_named(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let url = operator(&stage).await?;
    let mut relay = stage.relay()?;
    // The purging relay holds a lease, with or without messages.
    stage
        .database
        .wait_for(PATIENCE, "SELECT COUNT(*) FROM outbox_leases WHERE lease_until > UTC_TIMESTAMP(6)")
        .await?;
    let before = stage.database.number(STATE).await?;
    let (ok, _, err) = recover(&url, &["--yes"])?;
    ensure!(!ok && err.contains("stop all relays, workers and services"), "{err}");
    relay.stop(PATIENCE).await?;

    let mut connection = stage.database.connect().await?;
    let mut open = connection.begin().await?;
    sqlx::query("SELECT COUNT(*) FROM outbox_messages").execute(&mut *open).await?;
    let (ok, _, err) = recover(&url, &["--yes"])?;
    ensure!(!ok && err.contains("a transaction is open on the tables: stop the services"), "{err}");
    ensure!(stage.database.number(STATE).await? == before, "something was changed");
    open.rollback().await?;
    let (ok, _, err) = recover(&url, &["--yes"])?;
    ensure!(ok, "{err}");
    Ok(())
}
