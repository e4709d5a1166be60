//! Many messages behind one that holds their key.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use outbox_core::{
    Message,
    sqlx::{self, MySqlConnection},
};
use serde_json::json;
use testkit::{accounts::Account, relay::Relay};

use super::{Figures, PATIENCE, Size, figures, sent_per_second, stage};
use crate::{
    Common,
    drain::precise,
    setup::{Stage, key, payload, ready},
};

/// The first message of the key is dead, and holds it.
const BLOCK: &str = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, owner) \
    SELECT lane, id, key_hash, bytes, 1, UTC_TIMESTAMP(6), 1, 'rejected', 'bench' FROM outbox_pending; DELETE \
    FROM outbox_pending";
/// The time in which written rows are counted: longer than the pause of each loop that could write them.
const IDLE: Duration = Duration::from_secs(30);

/// The rows that are written while the messages wait, the drain of others beside them, and their release. One key alone
/// and many keys are drained first, to compare.
pub(super) async fn behind_a_blocked_key(common: &Common, size: Size) -> Result<Figures> {
    let (stage, settings) = stage(common).await?;
    let [one_key, many_keys, others, blocked] =
        [1, 2, 3, 4].map(|at| stage.topics.get(at).cloned().unwrap_or_default());
    let mut relay = stage.start(&settings)?;
    ready(&relay).await?;
    let single = |topic: &str, number| Message::new(topic, payload(number, common.bytes)).key("one");
    let many = |topic: &str, number| {
        Message::new(topic, payload(number, common.bytes)).key(key(number, common.keys).to_string())
    };
    let one_key_rate = drain(&stage, &relay, &one_key, size.rows, |number| single(&one_key, number)).await?;
    let plain_rate = drain(&stage, &relay, &many_keys, size.blocked, |number| many(&many_keys, number)).await?;

    relay.pause()?;
    stage.fill_with(1, |number| single(&blocked, number)).await?;
    stage.database.execute(BLOCK).await?;
    stage.fill_with(size.blocked, |number| single(&blocked, number)).await?;
    relay.resume()?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_pending").await?;
    let written = rows_written(&stage).await?;
    let beside = drain(&stage, &relay, &others, size.blocked, |number| many(&others, number)).await?;
    stage.client(Account::Operator)?.done("dead release --all --yes --because", &["a measurement"]).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let released = sent_per_second(&stage, &blocked).await?;
    relay.stop(Duration::from_secs(30)).await?;
    stage.remove().await?;
    Ok(figures(
        "blocked",
        [
            ("rows_written_per_second", json!(written)),
            ("drain_per_second_alone", json!(plain_rate)),
            ("drain_ratio", json!(beside / plain_rate)),
            ("release_per_second", json!(released)),
            ("release_ratio", json!(released / one_key_rate)),
        ],
    ))
}

/// Fills a backlog while the relay is paused; returns the rate at which it was sent.
async fn drain(
    stage: &Stage,
    relay: &Relay,
    topic: &str,
    messages: u64,
    message: impl Fn(u64) -> Message,
) -> Result<f64> {
    relay.pause()?;
    stage.fill_with(messages, message).await?;
    relay.resume()?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_pending").await?;
    sent_per_second(stage, topic).await
}

/// Rows that the server writes a second.
async fn rows_written(stage: &Stage) -> Result<f64> {
    let mut db = stage.database.connect_as_admin().await?;
    let before = written(&mut db).await?;
    let start = Instant::now();
    tokio::time::sleep(IDLE).await;
    Ok(precise(written(&mut db).await? - before) / start.elapsed().as_secs_f64())
}

async fn written(db: &mut MySqlConnection) -> Result<u64> {
    let sql = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_rows_inserted', 'Innodb_rows_updated', \
               'Innodb_rows_deleted')";
    let rows: Vec<(String, String)> = sqlx::query_as(sql).fetch_all(db).await?;
    rows.iter().map(|(_, count)| count.parse::<u64>().context("a count of rows")).sum()
}
