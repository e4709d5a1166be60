//! An operator's reads on tables with millions of rows: their time, the rows that the server reads for them, and what they take
//! from a relay that drains a backlog meanwhile. The sink confirms at once, so that no broker hides them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use outbox_core::sqlx::{self, MySqlConnection};
use serde_json::{Map, Value, json};
use testkit::{relay::Client, servers::PATIENCE};

use crate::{Common, drain::watch, setup::Stage};

/// The number of times that each read is measured; the report has the medians.
const TIMES: usize = 3;
/// The pause between two reads beside a drain.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest read that reaches the goal, in milliseconds.
const LONGEST: f64 = 1000.0;
/// The least ratio of the drain rates with and without reads.
const LEAST_RATIO: f64 = 0.95;

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Size {
    /// Messages that were sent.
    #[arg(long, default_value_t = 5_000_000)]
    sent: u64,
    /// Messages of each backlog.
    #[arg(long, default_value_t = 1_000_000)]
    pending: u64,
    /// Dead messages.
    #[arg(long, default_value_t = 100_000)]
    dead: u64,
    /// Bytes of a payload here, in place of --bytes.
    #[arg(long, default_value_t = 200)]
    payload: usize,
}

/// The reads: a name for the report, and the command. `SENT`, `PENDING` and `DEAD` are messages in the middle.
const READS: [(&str, &str); 14] = [
    ("status", "status"),
    ("why_sent", "why SENT"),
    ("why_pending", "why PENDING"),
    ("why_dead", "why DEAD"),
    ("pending_list", "pending list"),
    ("pending_by_topic", "pending list --group-by topic"),
    ("delayed_by_reason", "delayed list --group-by reason"),
    ("dead_list", "dead list"),
    ("dead_by_error", "dead list --group-by error"),
    ("dead_plan", "dead retry --reason unroutable"),
    ("keys_blocked", "keys blocked"),
    ("jobs", "jobs"),
    ("controls", "controls"),
    ("audit", "audit"),
];

pub(crate) async fn measure(common: &Common, size: Size) -> Result<(Value, bool)> {
    let common = Common { bytes: size.payload, ..common.clone() };
    let stage = Stage::new(&common).await?;
    stage.fill_sent(&common, size.sent).await?;
    stage.fill_pending(&common, size.dead).await?;
    // A third of the dead ones hold their key, each with another that waits. No message of the backlog has these keys.
    let bury = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, error, owner) \
        SELECT lane, id, id, bytes, 1, UTC_TIMESTAMP(6), id % 4 = 0, IF(id % 3 = 0, 'too_large', 'unroutable'), \
        CONCAT('refused for reason ', id % 50), 'bench' FROM outbox_pending WHERE id % 4 <> 1";
    let wait = "INSERT INTO outbox_delayed (lane, id, key_hash, bytes, attempts, due_at, holds_key, reason) \
        SELECT lane, id, id - 1, bytes, 0, '9999-12-31', 1, 'behind' FROM outbox_pending WHERE id % 4 = 1";
    stage.database.execute(&format!("{bury}; {wait}; DELETE FROM outbox_pending")).await?;
    stage.fill_pending(&common, size.pending).await?;
    let mut report = Map::new();
    let operator = stage.operator()?;
    let middle = [size.sent / 2, size.sent + size.dead + size.pending / 2, size.sent + size.dead / 2 / 4 * 4];
    let [sent, pending, dead] = middle.map(|id| id.to_string());
    let command = |words: &str| words.replace("SENT", &sent).replace("PENDING", &pending).replace("DEAD", &dead);
    let mut db = stage.database.connect_as_admin().await?;
    let mut longest: f64 = 0.0;
    for (name, words) in READS {
        let mut took = Vec::new();
        let before = rows_read(&mut db).await?;
        for _ in 0..TIMES {
            let start = Instant::now();
            operator.json(&command(words), &[]).await?;
            took.push(start.elapsed().as_secs_f64() * 1000.0);
        }
        took.sort_by(f64::total_cmp);
        let median = took.get(TIMES / 2).copied().unwrap_or(0.0);
        longest = longest.max(median);
        report.insert(format!("{name}_ms"), json!(median));
        report.insert(format!("{name}_rows"), json!((rows_read(&mut db).await? - before) / TIMES as u64));
    }
    let (mut alone, mut beside) = (0.0, 0.0);
    for reads in [false, true, false, true] {
        stage.fill_pending(&common, size.pending.saturating_sub(backlog(&stage).await?)).await?;
        let relay = stage.relay(true)?;
        let curve = tokio::select! {
            curve = watch(&relay, size.pending) => curve?,
            failed = read_on(&operator, &command, reads) => return failed.map(|()| (Value::Null, false)),
        };
        stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_pending").await?;
        drop(relay);
        *(if reads { &mut beside } else { &mut alone }) += curve.between(0.0, 1.0) / 2.0;
    }
    let ratio = beside / alone;
    for (name, value) in [("drain_messages_per_second", alone), ("drain_beside_reads_per_second", beside)] {
        report.insert(name.to_owned(), json!(value));
    }
    report.insert("drain_ratio".to_owned(), json!(ratio));
    report.insert("longest_ms".to_owned(), json!(longest));
    stage.remove().await?;
    Ok((Value::Object(report), true))
}

/// Whether the goals are reached.
pub(crate) fn goals(report: &Map<String, Value>) -> Map<String, Value> {
    let get = |name: &str| report.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let goals = [
        ("each_read_within_a_second", get("longest_ms") <= LONGEST),
        ("drain_beside_reads", get("drain_ratio") >= LEAST_RATIO),
    ];
    goals.into_iter().map(|(name, is_reached)| (name.to_owned(), is_reached.into())).collect()
}

/// Runs all reads, one after the other, without an end.
async fn read_on(operator: &Client, command: &impl Fn(&str) -> String, reads: bool) -> Result<()> {
    if !reads {
        return std::future::pending().await;
    }
    loop {
        for (_, words) in READS {
            operator.json(&command(words), &[]).await.context("a read beside the drain")?;
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn backlog(stage: &Stage) -> Result<u64> {
    Ok(stage.database.number("SELECT COUNT(*) FROM outbox_pending").await?.unsigned_abs())
}

/// The rows that the server has read so far, of all sessions.
async fn rows_read(db: &mut MySqlConnection) -> Result<u64> {
    let rows: Vec<(String, String)> = sqlx::query_as("SHOW GLOBAL STATUS LIKE 'Handler\\_read%'").fetch_all(db).await?;
    rows.iter().map(|(_, count)| Ok(count.parse::<u64>()?)).sum()
}
