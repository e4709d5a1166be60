//! `relay check`.

use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use outbox_core::store::operate;
use outbox_relay::sink::Feed;
use serde_json::Value;

use super::{database, output::Format, run::unusable};
use crate::{
    config::{Config, Loaded},
    doctor::{Severity, server::unsupported, tables},
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
type Checked = (String, Result<String, String>);

impl Check {
    pub(super) async fn run(self, loaded: &Loaded) -> anyhow::Result<bool> {
        let config = &loaded.config;
        let feeds = config.sinks.iter().map(|(name, sink)| sink.broker().feed(name));
        let feeds: Vec<_> = feeds.collect::<Result<_, _>>().map_err(unusable)?;
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

fn row((checked, found): Checked) -> [Value; 3] {
    let ok = found.is_ok();
    let (Ok(detail) | Err(detail)) = found;
    [checked.into(), ok.into(), detail.into()]
}

async fn look_at_database(config: &Config) -> anyhow::Result<String> {
    let mut connection = database::connect(config).await?;
    let findings = database::within(&mut connection, async |db| {
        // An account that may read nothing has findings on the tables.
        let server = operate::doctor::server(db).await.ok();
        let version = server.as_ref().and_then(|server| server.variables.get("version"));
        Ok(match version.and_then(|version| unsupported(version)) {
            Some(finding) => vec![finding],
            None => tables::start_up(db, config).await,
        })
    })
    .await?;
    let sentences = |severe: bool| {
        let found = findings.iter().filter(|it| (it.severity == Severity::Problem) == severe);
        found.map(|it| it.evidence.as_str()).collect::<Vec<_>>().join("; ")
    };
    let problems = sentences(true);
    let notes = sentences(false);
    ensure!(problems.is_empty(), problems);
    Ok(if notes.is_empty() { SERVES.to_owned() } else { format!("{SERVES}; {notes}") })
}

async fn look_at_sink(feed: Feed) -> Checked {
    let found = feed.sink.check(Instant::now() + DEADLINE).await;
    feed.sink.close().await;
    (format!("sink {}", feed.name), found.map(|()| "reached".to_owned()).map_err(|error| error.to_string()))
}
