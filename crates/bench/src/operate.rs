//! An operator's reads on tables with millions of rows: their time, the rows that the server reads for them, and what
//! they take from a relay that drains a backlog meanwhile. The sink confirms at once, so that no broker hides them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use outbox_core::sqlx::{self, MySqlConnection};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use testkit::{
    accounts::Account,
    relay::{Client, Relay, Settings},
    servers::{PATIENCE, until},
};

use crate::{Common, drain::watch, setup::Stage};

/// The number of times that each read is measured; the report has the medians.
const TIMES: usize = 3;
/// The pause between two reads beside a drain.
const PAUSE: Duration = Duration::from_secs(1);
/// Messages that consumers have processed, at most.
const PROCESSED: u64 = 1_000_000;
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

/// The process that asks.
#[derive(Debug, Clone, Copy)]
enum By {
    /// The command line, with the account of an operator.
    Operator,
    /// The same, with the account and the configuration of a relay.
    Relay,
    /// The command line asks `relay api`.
    Api,
    /// A page of `relay console`.
    Page,
}

/// The reads: a name for the report, who asks, and the command. `SENT`, `PENDING` and `DEAD` are messages in the
/// middle.
const READS: [(&str, By, &str); 38] = [
    ("status", By::Operator, "status"),
    ("why_sent", By::Operator, "why SENT"),
    ("why_pending", By::Operator, "why PENDING"),
    ("why_dead", By::Operator, "why DEAD"),
    ("pending_list", By::Operator, "pending list"),
    ("pending_by_topic", By::Operator, "pending list --group-by topic"),
    ("delayed_by_reason", By::Operator, "delayed list --group-by reason"),
    ("dead_list", By::Operator, "dead list"),
    ("dead_by_error", By::Operator, "dead list --group-by error"),
    ("dead_plan", By::Operator, "dead retry --reason unroutable"),
    ("keys_blocked", By::Operator, "keys blocked"),
    ("keys_show", By::Operator, "keys show --topic TOPIC --key key-7"),
    ("jobs", By::Operator, "jobs"),
    ("controls", By::Operator, "controls"),
    ("audit", By::Operator, "audit"),
    ("messages_list", By::Operator, "messages list"),
    ("messages_by_key", By::Operator, "messages list --topic TOPIC --key key-7"),
    ("messages_show", By::Operator, "messages show SENT"),
    ("replay_plan", By::Operator, "replay --all"),
    ("replay_plan_of_one", By::Operator, "replay SENT"),
    ("instances", By::Operator, "instances"),
    ("inbox_list", By::Operator, "inbox list"),
    ("doctor", By::Relay, "doctor"),
    ("api_status", By::Api, "status"),
    ("api_messages_list", By::Api, "messages list"),
    ("page_now", By::Page, "/"),
    ("page_messages", By::Page, "/messages?state=sent"),
    ("page_message", By::Page, "/message/DEAD"),
    ("page_keys", By::Page, "/keys"),
    ("page_key", By::Page, "/key?topic=TOPIC&key=key-7"),
    ("page_dead", By::Page, "/dead?reason=too_large"),
    ("page_delayed", By::Page, "/delayed"),
    ("page_pending", By::Page, "/pending"),
    ("page_destinations", By::Page, "/destinations"),
    ("page_consumers", By::Page, "/consumers"),
    ("page_audit", By::Page, "/audit"),
    ("page_dead_plan", By::Page, "/order/dead/retry?reason=unroutable"),
    ("page_replay_plan", By::Page, "/order/replay?all=true"),
];

pub(crate) async fn measure(common: &Common, size: Size) -> Result<(Value, bool)> {
    let common = Common { bytes: size.payload, ..common.clone() };
    let stage = Stage::new(&common).await?;
    fill(&stage, &common, size).await?;
    let reader = Reader::start(&stage, size).await?;
    let mut report = Map::new();
    let mut longest = 0.0_f64;
    let mut db = stage.database.connect_as_admin().await?;
    for read in READS {
        let mut took = Vec::new();
        let before = rows_read(&mut db).await?;
        for _ in 0..TIMES {
            let start = Instant::now();
            reader.read(read).await?;
            took.push(start.elapsed().as_secs_f64() * 1000.0);
        }
        took.sort_by(f64::total_cmp);
        let median = took.get(TIMES / 2).copied().unwrap_or(0.0);
        longest = longest.max(median);
        let (name, ..) = read;
        report.insert(format!("{name}_ms"), json!(median));
        report.insert(format!("{name}_rows"), json!((rows_read(&mut db).await? - before) / TIMES as u64));
    }
    let mut alone = 0.0;
    let mut beside = 0.0;
    for reads in [false, true, false, true] {
        stage.fill_pending(&common, size.pending.saturating_sub(backlog(&stage).await?)).await?;
        let relay = stage.relay(true)?;
        let curve = tokio::select! {
            curve = watch(std::slice::from_ref(&relay), size.pending) => curve?,
            failed = reader.read_on(reads) => return failed.map(|()| (Value::Null, false)),
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

/// Makes messages of all states, and what two consumers have processed.
async fn fill(stage: &Stage, common: &Common, size: Size) -> Result<()> {
    stage.fill_sent(common, size.sent).await?;
    for first in (1..=size.sent.min(PROCESSED)).step_by(100_000) {
        let last = size.sent.min(PROCESSED).min(first + 99_999);
        let process = "INSERT INTO inbox_processed (consumer, message_id) \
            SELECT CONCAT('consumer-', id % 2), message_id FROM outbox_messages WHERE id BETWEEN";
        stage.database.execute(&format!("{process} {first} AND {last}")).await?;
    }
    stage.fill_pending(common, size.dead).await?;
    // A third of the dead ones hold their key, each with another that waits. No message of the backlog has these keys.
    let bury = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, error, \
                owner) \
        SELECT lane, id, id, bytes, 1, UTC_TIMESTAMP(6), id % 4 = 0, IF(id % 3 = 0, 'too_large', 'unroutable'), \
        CONCAT('refused for reason ', id % 50), 'bench' FROM outbox_pending WHERE id % 4 <> 1";
    let wait = "INSERT INTO outbox_delayed (lane, id, key_hash, bytes, attempts, due_at, holds_key, reason) \
        SELECT lane, id, id - 1, bytes, 0, '9999-12-31', 1, 'behind' FROM outbox_pending WHERE id % 4 = 1";
    stage.database.execute(&format!("{bury}; {wait}; DELETE FROM outbox_pending")).await?;
    stage.fill_pending(common, size.pending).await
}

/// The clients that read.
struct Reader {
    operator: Client,
    relay: Client,
    api: Client,
    console: Relay,
    /// The words of commands that stand for these messages, and for the topic.
    words: [(&'static str, String); 4],
    _api: Relay,
    _folder: TempDir,
}

impl Reader {
    async fn start(stage: &Stage, size: Size) -> Result<Self> {
        let middle = [size.sent / 2, size.sent + size.dead + size.pending / 2, size.sent + size.dead / 2 / 4 * 4];
        let [sent, pending, dead] = middle.map(|id| id.max(1).to_string());
        let process = stage.start_api(&Settings::new(&stage.database.url_as(Account::Operator)?))?;
        let mut api = stage.client(Account::Operator)?;
        api.flags = ["--via".to_owned(), format!("http://127.0.0.1:{}", process.port())].to_vec();
        until(PATIENCE, "an answer of the API", || api.json("controls", &[])).await?;
        // It answers faster than a person asks.
        let settings = Settings::new(&stage.database.url_as(Account::Operator)?);
        let console = stage.start_console(&settings.set("api", "requests_per_second", 10_000))?;
        until(PATIENCE, "the console", || console.get("/livez")).await?;
        let folder = tempfile::tempdir()?;
        let mut relay = stage.client(Account::Relay)?;
        let file = folder.path().join("relay.toml");
        std::fs::write(&file, stage.settings(true)?.render(process.port())?)?;
        relay.flags = ["--config".to_owned(), file.display().to_string()].to_vec();
        Ok(Self {
            operator: stage.client(Account::Operator)?,
            relay,
            api,
            console,
            words: [("SENT", sent), ("PENDING", pending), ("DEAD", dead), ("TOPIC", stage.topic.name().to_owned())],
            _api: process,
            _folder: folder,
        })
    }

    async fn read(&self, (name, by, words): (&str, By, &str)) -> Result<()> {
        let words = self.words.iter().fold(words.to_owned(), |words, (word, name)| words.replace(word, name));
        let client = match by {
            By::Operator => &self.operator,
            By::Relay => &self.relay,
            By::Api => &self.api,
            By::Page => {
                let (status, page) = self.console.get(&words).await?;
                let is_whole = status == 200 && !page.contains("role=\"alert\"");
                ensure!(is_whole, "{name}: {status} {page}");
                return Ok(());
            }
        };
        let output = client.run(&words, &["--format", "json"]).await?;
        // Status 3: the doctor has found something.
        let is_answered = matches!(output.status.code(), Some(0 | 3));
        ensure!(is_answered, "{name}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Runs all reads, one after the other, without an end.
    async fn read_on(&self, reads: bool) -> Result<()> {
        if !reads {
            return std::future::pending().await;
        }
        loop {
            for read in READS {
                self.read(read).await.context("a read beside the drain")?;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
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

async fn backlog(stage: &Stage) -> Result<u64> {
    Ok(stage.database.number("SELECT COUNT(*) FROM outbox_pending").await?.unsigned_abs())
}

/// The rows that the server has read so far, of all sessions.
async fn rows_read(db: &mut MySqlConnection) -> Result<u64> {
    let rows: Vec<(String, String)> = sqlx::query_as("SHOW GLOBAL STATUS LIKE 'Handler\\_read%'").fetch_all(db).await?;
    rows.iter().map(|(_, count)| Ok(count.parse::<u64>()?)).sum()
}
