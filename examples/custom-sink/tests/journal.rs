//! The sink passes the conformance suite, and works in its program.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use custom_sink::Journal;
use outbox_core::{Message, Outbox, sqlx::Connection as _};
use outbox_relay::sink::{
    Destination, Outgoing, Sink,
    conformance::{self, Arrived, ConformanceError, Control, Harness},
};
use serde_json::Value;
use tempfile::TempDir;
use testkit::{
    accounts::Account,
    database::Database,
    program::Program,
    servers::{Flavor, PATIENCE, until},
};

struct JournalHarness {
    folder: TempDir,
    sink: Journal,
    targets: AtomicUsize,
}

impl JournalHarness {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let sink = Journal::new(journal(&folder)?);
        Ok(Self { folder, sink, targets: AtomicUsize::new(0) })
    }
}

#[async_trait]
impl Harness for JournalHarness {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    async fn destination(&self) -> Result<Arc<Destination>, ConformanceError> {
        let number = self.targets.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Destination::new("journal", format!("target-{number}"), "")))
    }

    /// A message is in the file before it is confirmed, so this does not wait.
    async fn arrived(&self, destination: &Destination, _: usize) -> Result<Vec<Arrived>, ConformanceError> {
        let lines = lines(&self.folder.path().join("journal")).map_err(ConformanceError::new)?;
        let here = lines.iter().filter(|line| line["target"] == destination.target.as_str());
        here.map(arrived).collect::<Result<_>>().map_err(ConformanceError::new)
    }

    /// The file takes every target.
    fn missing(&self) -> Option<Arc<Destination>> {
        None
    }

    fn rejected(&self, _: &Arc<Destination>) -> Option<Outgoing> {
        None
    }

    fn unreachable(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(Journal::new("/nowhere/journal")))
    }

    async fn control(&self, _: Control) -> Result<bool, ConformanceError> {
        Ok(false)
    }
}

/// Makes an empty journal.
fn journal(folder: &TempDir) -> Result<PathBuf> {
    let file = folder.path().join("journal");
    fs::write(&file, "")?;
    Ok(file)
}

fn lines(file: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(file)?;
    text.lines().filter(|line| !line.is_empty()).map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn arrived(message: &Value) -> Result<Arrived> {
    let text = |name: &str| message[name].as_str().map(str::to_owned);
    Ok(Arrived {
        message_id: text("id").context("no id")?.parse()?,
        key: bytes(&message["key"])?,
        event_type: text("type"),
        content_type: text("content_type"),
        headers: serde_json::from_value(message["headers"].clone())?,
        payload: bytes(&message["payload"])?,
    })
}

fn bytes(value: &Value) -> Result<Option<Vec<u8>>> {
    match value["base64"].as_str() {
        Some(base64) => Ok(Some(BASE64.decode(base64)?)),
        None => Ok(value.as_str().map(|text| text.as_bytes().to_vec())),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_journal_conforms() -> Result<()> {
    Ok(conformance::run(&JournalHarness::new()?).await?)
}

/// Commits orders of seven customers.
async fn commit(database: &Database, numbers: Range<u64>) -> Result<()> {
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let order = |number: u64| Message::new("orders", number.to_string()).key((number % 7).to_string());
    Outbox::new().enqueue_all(&mut tx, numbers.map(order)).await?;
    Ok(tx.commit().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_writes_what_is_committed_and_waits_while_the_file_is_away() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let folder = tempfile::tempdir()?;
    let file = journal(&folder)?;
    let away = folder.path().join("away");
    let login = database.url_as(Account::Relay)?;
    let environment = [("DATABASE_URL", login.as_str()), ("JOURNAL", file.to_str().context("no text")?)];
    let mut program = Program::start(env!("CARGO_BIN_EXE_custom-sink"), &environment)?;
    commit(&database, 0..200).await?;
    database.wait_until_drained(PATIENCE).await.context(program.log()?)?;

    fs::rename(&file, &away)?;
    commit(&database, 200..400).await?;
    until(PATIENCE, "the outage to be seen", || async {
        let log = program.log()?;
        ensure!(log.contains("the sink is unavailable"), "{log}");
        Ok(())
    })
    .await?;
    fs::rename(&away, &file)?;
    database.wait_until_drained(PATIENCE).await.context(program.log()?)?;

    let mut orders = BTreeSet::new();
    let mut last = HashMap::new();
    for message in lines(&file)? {
        let number: u64 = message["payload"].as_str().context("no payload")?.parse()?;
        // A message may arrive twice. First arrivals are in the order of their key.
        if orders.insert(number) {
            let before = last.insert(message["key"].to_string(), number);
            ensure!(before.is_none_or(|before| before < number), "{number} came after {before:?}");
        }
    }
    ensure!(orders.iter().copied().eq(0..400), "{} of 400 orders came", orders.len());
    program.stop(PATIENCE).await
}
