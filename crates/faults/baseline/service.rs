//! A service of the baseline: the load of its testkit, with its `outbox-core`. Row V1 puts this file into the
//! baseline's tree and builds it there, so it uses what the baseline has and never changes.
//!
//! Arguments: the database's address, the topic, transactions a second, the seed, and the file that takes the ledger.
//! It goes on until its standard input ends.

use std::{fs, io::Read as _};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use testkit::{
    database::Database,
    ledger::{Contents, Entry, Ledger},
    load::Load,
};

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, topic, rate, seed, file] = arguments.as_slice() else { anyhow::bail!("five arguments are due") };
    let ledger = Ledger::new();
    let load = Load::standard(topic, rate.parse()?).seed(seed.parse()?);
    let load = load.start(&Database::at(url), &ledger).await?;
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    load.stop().await?;
    let entries: Vec<Value> = ledger.entries().iter().map(entry).collect();
    fs::write(file, serde_json::to_string(&entries)?).context("cannot write the ledger")
}

fn entry(entry: &Entry) -> Value {
    json!({
        "id": entry.id.to_string(),
        "sequence": entry.sequence,
        "contents": contents(&entry.contents),
        "outcome": format!("{:?}", entry.outcome),
    })
}

fn contents(contents: &Contents) -> Value {
    json!({
        "topic": contents.topic,
        "key": contents.key,
        "event_type": contents.event_type,
        "content_type": contents.content_type,
        "headers": contents.headers,
        "payload": contents.payload.map(|payload| json!({ "length": payload.length, "sha256": payload.sha256 })),
    })
}
