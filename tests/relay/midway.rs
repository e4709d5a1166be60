//! A relay dies in the middle of its own transaction: all of it has happened, or nothing.

use std::time::Duration;

use anyhow::{Result, ensure};
use outbox_core::{
    Message,
    sqlx::{self, Connection as _},
};
use testkit::{
    accounts::Account, consume::Broker, judge::Expectations, ledger::Draft, load, relay::Settings, servers::Flavor,
};

use crate::stage::{PATIENCE, Stage, start};

/// A number in the tables, before the transaction and after it. Half of the transaction would make another number.
struct State {
    sql: &'static str,
    before: i64,
    after: i64,
}

/// Creates a stage with ten messages.
async fn ten(with: impl Fn(Message) -> Message) -> Result<Stage> {
    let stage = Stage::new(Flavor::MySql, Broker::RabbitMq).await?.patient();
    let drafts: Vec<Draft> = (1..=10).map(|n| stage.draft(n)).collect();
    load::commit(&stage.database, &stage.ledger, &drafts, with).await?;
    Ok(stage)
}

/// A relay waits for this lock in the middle of its transaction, and is killed there.
async fn dies_midway(stage: &Stage, lock: &'static str, shows: &State) -> Result<()> {
    let mut locker = stage.database.plain().await?;
    let mut held = locker.begin().await?;
    sqlx::query(lock).fetch_all(&mut *held).await?;
    let mut relay = start(&stage.settings)?;
    stage.database.wait_for_lock_waits(Flavor::MySql, 1).await?;
    let midway = stage.database.number(shows.sql).await?;
    ensure!(midway == shows.before, "half of it can be seen: {midway}");
    relay.kill()?;
    relay.wait_for_end(PATIENCE).await?;
    held.rollback().await?;
    locker.close().await?;
    // The server may still work on the last request.
    let gone =
        "SELECT COUNT(*) = 0 FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()";
    stage.database.wait_for(PATIENCE, gone).await?;
    let left = stage.database.number(shows.sql).await?;
    ensure!([shows.before, shows.after].contains(&left), "half of it has happened: {left}");
    Ok(())
}

#[tokio::test]
async fn a_relay_that_dies_in_a_take_over_has_taken_over_or_has_not() -> Result<()> {
    let mut stage = ten(|message| message).await?;
    let mortal =
        Settings::new(&stage.database.url_as(Account::Relay)?).with_broker_of(&stage.topic).crash_at("after_claim");
    start(&mortal)?.wait_for_end(PATIENCE).await?;
    let sql = "SELECT (SELECT COUNT(*) FROM outbox_claims) * 100 \
               + (SELECT COUNT(*) FROM outbox_pending WHERE attempts = 1)";
    let lock = "SELECT id FROM outbox_pending WHERE lane = 0 AND id = 10 FOR UPDATE";
    dies_midway(&stage, lock, &State { sql, before: 100, after: 10 }).await?;
    let _relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(10)).await
}

#[tokio::test]
async fn a_relay_that_dies_in_a_promotion_has_promoted_or_has_not() -> Result<()> {
    let mut stage = ten(|message| message.delay(Duration::from_millis(1))).await?;
    let sql = "SELECT (SELECT COUNT(*) FROM outbox_pending) * 100 + (SELECT COUNT(*) FROM outbox_delayed)";
    let lock = "SELECT id FROM outbox_delayed FOR UPDATE";
    dies_midway(&stage, lock, &State { sql, before: 10, after: 1000 }).await?;
    let _relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(10)).await
}

#[tokio::test]
async fn a_relay_that_dies_in_a_purge_has_purged_or_has_not() -> Result<()> {
    let mut stage = ten(|message| message).await?;
    let mut first = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(10)).await?;
    first.stop(PATIENCE).await?;
    stage.database.execute("UPDATE outbox_sent SET sent_at = sent_at - INTERVAL 2 HOUR").await?;
    stage.settings = stage.settings.clone().set("retention", "sent", "1h");
    let sql = "SELECT (SELECT COUNT(*) FROM outbox_messages) * 100 + (SELECT COUNT(*) FROM outbox_sent_messages)";
    let lock = "SELECT id FROM outbox_messages FOR UPDATE";
    dies_midway(&stage, lock, &State { sql, before: 1010, after: 0 }).await?;
    // The lease of the dead relay would last a minute.
    stage.database.execute("UPDATE outbox_leases SET lease_until = '1999-01-01'").await?;
    let _relay = stage.relay()?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_messages").await?;
    ensure!(stage.database.number(sql).await? == 0, "receipts are left");
    Ok(())
}
