//! `relay check`.

use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use clap::Args;
use outbox_core::{
    SchemaError, check_schema,
    store::{counters, floor, session},
};
use serde_json::Value;

use super::{database, output::Format, run::unusable};
use crate::{
    config::{Config, Loaded},
    sink::{Feed, make},
    state::session::describe,
};

/// The answer for a usable database.
const SERVES: &str = "reached; the tables serve this relay";
/// The time that one check may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// What to check.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// Also connect to the database and the brokers; exit code 3 if one cannot be used
    #[arg(long)]
    connect: bool,
    #[command(flatten)]
    format: Format,
}

/// A checked item, and the result.
type Finding = (String, Result<String, String>);

impl Check {
    pub(super) async fn run(self, loaded: &Loaded) -> anyhow::Result<bool> {
        let config = &loaded.config;
        let feeds = config.sinks.iter().map(|(name, sink)| make::feed(name, sink));
        let feeds: Vec<_> = feeds.collect::<Result<_, _>>().map_err(|error| unusable(&error))?;
        let mut findings = vec![("configuration".to_owned(), Ok("can be used".to_owned()))];
        findings.extend(loaded.warnings.iter().map(|warning| ("warning".to_owned(), Ok(warning.to_string()))));
        if let Err(error) = config.retention.check_window() {
            findings.push(("inbox window".to_owned(), Err(error.to_string())));
        }
        if self.connect {
            findings
                .push(("database".to_owned(), look_at_database(config).await.map_err(|error| format!("{error:#}"))));
            for feed in feeds {
                findings.push(look_at_sink(feed).await);
            }
        }
        let holds = findings.iter().all(|(_, found)| found.is_ok());
        let rows: Vec<[Value; 3]> = findings.into_iter().map(row).collect();
        self.format.rows(["checked", "ok", "detail"], &rows)?;
        Ok(holds)
    }
}

fn row((checked, found): Finding) -> [Value; 3] {
    let ok = found.is_ok();
    let (Ok(detail) | Err(detail)) = found;
    [checked.into(), ok.into(), detail.into()]
}

async fn look_at_database(config: &Config) -> anyhow::Result<String> {
    let mut connection = database::connect(config).await?;
    check_schema(&mut connection).await.map_err(|error| match error {
        SchemaError::Database(error) => anyhow!(describe(&error)),
        other => other.into(),
    })?;
    if let Some(behind) = counters::behind(&mut connection).await? {
        return Err(behind.into());
    }
    let [read, write] = session::servers(&mut connection).await?;
    ensure!(
        read == write,
        "one server answers reads ({read}) and another one writes ({write}), so that what is claimed may be read as it was: let \
         the relay reach the primary without a proxy that splits reads and writes"
    );
    if !floor::is_in_galera(&mut connection).await? {
        return Ok(SERVES.to_owned());
    }
    let age = config.relay.max_transaction_age.as_secs();
    Ok(format!(
        "{SERVES}; a node of a Galera cluster does not list the transactions of the others: messages of a transaction that is open for \
         more than {age} s (relay.max_transaction_age) may come out of order"
    ))
}

async fn look_at_sink(feed: Feed) -> Finding {
    let found = feed.sink.check(Instant::now() + DEADLINE).await;
    feed.sink.close().await;
    (format!("sink {}", feed.name), found.map(|()| "reached".to_owned()).map_err(|error| error.to_string()))
}
