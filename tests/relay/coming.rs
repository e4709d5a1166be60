//! The moves from other outboxes: the SQL of the pages `docs/coming-from-*.md`, while a service writes.

use std::{
    collections::HashMap,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, Result, ensure};
use outbox_core::sqlx::{self, AssertSqlSafe, Connection as _, MySqlConnection, Row as _};
use serde_json::Value;
use testkit::{
    consume::{Arrival, Broker},
    on_both_databases,
    servers::{Flavor, until},
};

use crate::stage::{PATIENCE, Stage, sql_block};

on_both_databases!(the_rows_of_a_table_arrive_once_and_in_order);

const TABLE: &str = include_str!("../../docs/coming-from-a-table.md");
const DEBEZIUM: &str = include_str!("../../docs/coming-from-debezium.md");
/// The rows that are there before the move.
const OLD: usize = 2500;
/// Of these, the ones that the old job or connector has sent.
const SENT: usize = 100;
const KEYS: usize = 20;

/// An old outbox: a row's columns, with its topic, its key and its number.
struct Old {
    insert: &'static str,
    values: fn(&str, usize) -> String,
}

const OWN: Old = Old {
    insert: "INSERT INTO old_outbox (topic, message_key, payload) VALUES ",
    values: |topic, n| format!("('{topic}', 'key-{}', '{{\"n\": {n}}}')", n % KEYS),
};

const ROUTER: Old = Old {
    insert: "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES ",
    values: |topic, n| {
        let id = format!("{n:08x}-0000-4000-8000-000000000000");
        format!("('{id}', '{topic}', 'key-{}', 'Placed', '{{\"n\": {n}}}')", n % KEYS)
    },
};

impl Old {
    async fn write(&self, db: &mut MySqlConnection, topic: &str, numbers: Range<usize>) -> Result<()> {
        let rows = numbers.map(|n| (self.values)(topic, n)).collect::<Vec<_>>().join(", ");
        sqlx::raw_sql(AssertSqlSafe(format!("{}{rows}", self.insert))).execute(db).await?;
        Ok(())
    }

    /// Writes a row at a time until it is told to stop; returns the number of all rows.
    async fn keep_writing(&self, stage: &Stage, stop: &AtomicBool) -> Result<usize> {
        let mut db = stage.database.connect_as_admin().await?;
        let mut n = OLD;
        while !stop.load(Ordering::SeqCst) {
            self.write(&mut db, stage.topic.name(), n..n + 1).await?;
            n += 1;
        }
        Ok(n)
    }
}

/// Runs a block of a page, as the page says: until it moves fewer messages than this.
async fn repeat(db: &mut MySqlConnection, block: &'static str, most: i64) -> Result<()> {
    loop {
        let rows = sqlx::raw_sql(block).fetch_all(&mut *db).await?;
        let moved: i64 = rows.first().context("no result")?.try_get("moved")?;
        if moved < most {
            return Ok(());
        }
    }
}

/// Waits until the service has written more rows after the switch, and stops it.
async fn write_on(stage: &Stage, table: &str, stop: &AtomicBool) -> Result<()> {
    let written = format!("SELECT COUNT(*) FROM {table}");
    let before = stage.database.number(&written).await?;
    until(PATIENCE, "more rows", || async {
        ensure!(stage.database.number(&written).await? >= before + 200, "not yet");
        Ok(())
    })
    .await?;
    stop.store(true, Ordering::SeqCst);
    Ok(())
}

/// Checks that exactly these numbers have arrived, and those of a key in their order.
fn are_in_order(arrivals: &[Arrival], expected: Range<usize>) -> Result<()> {
    let mut last = HashMap::new();
    for arrival in arrivals {
        let payload: Value = serde_json::from_slice(arrival.payload.as_deref().context("a tombstone")?)?;
        let n = payload.get("n").and_then(Value::as_u64).context("no number")?;
        let before = last.insert(arrival.key.clone(), n);
        ensure!(before.is_none_or(|before| before < n), "{n} after {before:?}");
    }
    ensure!(arrivals.len() == expected.len(), "{} arrivals of {expected:?}", arrivals.len());
    Ok(())
}

async fn the_rows_of_a_table_arrive_once_and_in_order(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::RabbitMq).await?;
    let mut db = stage.database.connect_as_admin().await?;
    let block = |text| sql_block(TABLE, text);
    stage.database.execute(block("CREATE TABLE old_outbox")?).await?;
    OWN.write(&mut db, stage.topic.name(), 0..OLD).await?;
    stage.database.execute(&format!("UPDATE old_outbox SET sent_at = NOW(6) WHERE id <= {SENT}")).await?;
    let dry_run = sqlx::raw_sql(block("WITH ROLLUP")?).fetch_all(&mut db).await?;
    let unsent: i64 = dry_run.last().context("no total")?.try_get("unsent")?;
    ensure!(usize::try_from(unsent)? == OLD - SENT, "{unsent} unsent");
    let _relay = stage.relay()?;
    let stop = AtomicBool::new(false);
    let moves = async {
        stage.database.execute(block("CREATE PROCEDURE")?).await?;
        repeat(&mut db, block("CALL move_old_outbox(1000);")?, 1000).await?;
        sqlx::raw_sql(block("CREATE TRIGGER")?).execute(&mut db).await?;
        write_on(&stage, "old_outbox", &stop).await
    };
    let (written, ()) = tokio::try_join!(OWN.keep_writing(&stage, &stop), moves)?;
    stage.database.wait_until_drained(PATIENCE).await?;
    are_in_order(stage.topic.read().await?, SENT..written)?;
    stage.database.execute(block("DROP TRIGGER")?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_connector_the_relays_send_what_is_written_behind_its_last_row() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::RabbitMq).await?;
    let mut db = stage.database.connect_as_admin().await?;
    let block = |text| sql_block(DEBEZIUM, text);
    stage.database.execute(block("CREATE TABLE outbox (")?).await?;
    ROUTER.write(&mut db, stage.topic.name(), 0..OLD).await?;
    sqlx::raw_sql(block("WITH ROLLUP")?).execute(&mut db).await?;
    let _relay = stage.relay()?;
    let stop = AtomicBool::new(false);
    let moves = async {
        stage.database.execute(block("CREATE VIEW")?).await?;
        sqlx::raw_sql(block("'outbox-switch'")?).execute(&mut db).await?;
        write_on(&stage, "outbox_after", &stop).await
    };
    let (written, ()) = tokio::try_join!(ROUTER.keep_writing(&stage, &stop), moves)?;
    // With the event that marks the end.
    let theirs = usize::try_from(stage.database.number("SELECT COUNT(*) FROM outbox_before").await?)? - 1;
    stage.database.wait_until_drained(PATIENCE).await?;
    are_in_order(stage.topic.read().await?, theirs..written)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_connector_the_rows_that_it_has_not_sent_are_moved() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::RabbitMq).await?;
    let mut db = stage.database.connect_as_admin().await?;
    let block = |text| sql_block(DEBEZIUM, text);
    stage.database.execute(block("CREATE TABLE outbox (")?).await?;
    for n in 0..OLD {
        ROUTER.write(&mut db, stage.topic.name(), n..n + 1).await?;
    }
    let _relay = stage.relay()?;
    let stop = AtomicBool::new(false);
    let moves = async {
        stage.database.execute(block("CREATE VIEW")?).await?;
        stage.database.execute(block("CREATE TABLE outbox_published")?).await?;
        let sent = format!("INSERT INTO outbox_published (id) SELECT id FROM outbox ORDER BY created_at LIMIT {SENT}");
        stage.database.execute(&sent).await?;
        repeat(&mut db, block("CALL move_outbox(10000);")?, 10_000).await?;
        sqlx::raw_sql(block("CALL move_outbox(1000000000);")?).execute(&mut db).await?;
        write_on(&stage, "outbox_after", &stop).await
    };
    let (written, ()) = tokio::try_join!(ROUTER.keep_writing(&stage, &stop), moves)?;
    stage.database.wait_until_drained(PATIENCE).await?;
    are_in_order(stage.topic.read().await?, SENT..written)?;
    Ok(db.close().await?)
}
