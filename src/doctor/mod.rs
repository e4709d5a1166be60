//! Looks at everything around a relay for what is wrong or may go wrong: settings and account of the database, its
//! transactions, the tables and their rows, the brokers and their destinations. Each finding has its evidence, the
//! reason why it matters, and the fix.

mod account;
#[cfg(feature = "rabbitmq")]
mod bindings;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "rabbitmq")]
mod management;
#[cfg(feature = "rabbitmq")]
mod queues;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
pub(crate) mod server;
mod sizes;
pub(crate) mod tables;
mod tail;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use outbox_core::{
    sqlx,
    store::{
        operate::{doctor, locked},
        refusal::{Refusal, refusal},
    },
};
use outbox_relay::{
    database::{self, Login},
    pipeline::read::route::Routes,
    state::session::describe,
};
use serde::Serialize;

use crate::config::{Config, KafkaConfig, Loaded, RabbitMqConfig, SinkConfig};

/// The time that connecting may take, and each check of a broker.
const DEADLINE: Duration = Duration::from_secs(10);
/// The time that all reads of the database may take.
const READS: Duration = Duration::from_mins(1);

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// A relay does not start, or messages do not move.
    Problem,
    /// Something may be lost, repeated or stalled.
    Risk,
    /// Worth knowing, or not checked.
    Note,
}

/// A place for a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunIn {
    /// A client of the database, as an administrator, with the outbox's database as the default one.
    Mysql,
    /// A shell.
    Shell,
}

/// Something that was found. Its names are stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// A short code.
    pub finding: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// The evidence, a sentence.
    pub evidence: String,
    /// Why it matters, a sentence; empty if the evidence says so.
    pub matters: &'static str,
    /// The fix, a sentence; empty if there is nothing to do.
    pub fix: String,
    /// The command of the fix, to paste.
    pub command: Option<String>,
    /// The place for the command.
    pub run_in: Option<RunIn>,
}

impl Finding {
    fn new(severity: Severity, finding: &'static str, evidence: impl Into<String>) -> Self {
        let evidence = evidence.into();
        Self { finding, severity, evidence, matters: "", fix: String::new(), command: None, run_in: None }
    }

    fn problem(finding: &'static str, evidence: impl Into<String>) -> Self {
        Self::new(Severity::Problem, finding, evidence)
    }

    fn risk(finding: &'static str, evidence: impl Into<String>) -> Self {
        Self::new(Severity::Risk, finding, evidence)
    }

    fn note(finding: &'static str, evidence: impl Into<String>) -> Self {
        Self::new(Severity::Note, finding, evidence)
    }

    fn matters(self, matters: &'static str) -> Self {
        Self { matters, ..self }
    }

    fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: fix.into(), ..self }
    }

    fn sql(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), run_in: Some(RunIn::Mysql), ..self }
    }

    fn shell(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), run_in: Some(RunIn::Shell), ..self }
    }
}

/// The consequence of a destination that takes nothing.
#[cfg(any(feature = "kafka", feature = "rabbitmq"))]
const WAITS: &str = "Its messages wait for relay.unroutable_grace, or for relay.first_destination_grace if it has \
                     never taken one; then some of them are dead.";

/// The exchanges or topics of a sink, each with a routing key, which is empty on Kafka; `None` if it depends on a
/// message.
type RoutedDestinations = BTreeSet<(String, Option<String>)>;

/// The account with which the doctor looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DoctorAccount {
    Relay,
    Operator,
}

/// Looks at everything, the worst findings first. Changes nothing. What cannot be read is a finding, too.
pub(crate) async fn examine(loaded: &Loaded) -> Vec<Finding> {
    look(loaded, DoctorAccount::Relay).await
}

async fn look(loaded: &Loaded, account: DoctorAccount) -> Vec<Finding> {
    let config = &loaded.config;
    let warning = |warning: &crate::config::Problem| Finding::note("configuration", warning.to_string());
    let mut findings: Vec<_> = loaded.warnings.iter().map(warning).collect();
    findings.extend(tables::retention(config));
    let mut topics = Vec::new();
    let looked = tokio::time::timeout(READS, look_at_database(config, account, &mut findings, &mut topics)).await;
    if looked.is_err() {
        let evidence = format!("The database did not answer within {} s.", READS.as_secs());
        findings.push(Finding::problem("database_slow", evidence).fix("Look at its load, its locks and the network."));
    }
    let destinations = destinations(config, &topics);
    for (name, sink) in &config.sinks {
        findings.extend(look_at_sink(name, sink, destinations.get(name.as_str())).await);
    }
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// Does the same from a process of operators, whose account needs other privileges than the relay's.
pub(crate) async fn examine_as_operator(loaded: &Loaded) -> Vec<Finding> {
    let mut findings = look(loaded, DoctorAccount::Operator).await;
    findings.retain(|finding| !finding.finding.starts_with("privilege_"));
    let evidence = "The account of the relay, and sinks that are not in this process's configuration, are not checked.";
    let note = Finding::note("not_checked", evidence);
    findings.push(note.fix("Run the doctor with the relay's configuration.").shell("relay doctor --config RELAY.toml"));
    findings
}

async fn look_at_database(
    config: &Config,
    account: DoctorAccount,
    findings: &mut Vec<Finding>,
    topics: &mut Vec<(String, Option<String>)>,
) {
    let login = Login::Configured(config.database.clone());
    let connected = tokio::time::timeout(DEADLINE, database::connect(&login)).await;
    let mut db = match connected {
        Ok(Ok(db)) => db,
        failed => {
            let why = failed.map_or("no answer in time".to_owned(), |it| {
                it.map_or_else(|error| describe(&error), |_| String::new())
            });
            let evidence = format!("The database cannot be reached: {why}.");
            findings.push(Finding::problem("database_unreachable", evidence).matters("Nothing is published."));
            return;
        }
    };
    // Each later check would wait.
    if let Ok(Some(lock)) = locked::find(&mut db).await {
        return findings.push(tables::table_locked(&lock));
    }
    match server::examine(&mut db, &login).await {
        Ok(found) => findings.extend(found),
        Err(error) => findings.push(not_read("The server's settings", &error)),
    }
    if findings.iter().any(|found| server::NO_WRITES.contains(&found.finding)) {
        // The later checks would fail for the same reason.
        return;
    }
    if findings.iter().any(|found| found.finding == server::NO_TABLES) {
        // The missing tables, and privileges on them, follow from it.
        findings.retain(|finding| finding.finding != "privilege_missing");
        return;
    }
    // The start of a relay needs its privileges.
    let start = if account == DoctorAccount::Relay { tables::start_up(&mut db, config).await } else { Vec::new() };
    if start.iter().any(|finding| finding.command.as_deref() == Some("relay migrate up")) {
        // It may follow from missing tables.
        findings.retain(|finding| finding.finding != "privilege_missing");
    }
    let is_usable = start.iter().all(|finding| finding.severity > Severity::Problem);
    findings.extend(start);
    // A missing table or privilege was found before.
    if is_usable {
        match tables::examine(&mut db, config).await {
            Ok(found) => findings.extend(found),
            Err(error) => findings.push(not_read("The queue", &error)),
        }
        findings.extend(tail::examine(&mut db, config, findings).await);
        match doctor::topics(&mut db).await {
            Ok(found) => *topics = found,
            Err(error) => findings.push(not_read("The topics in use", &error)),
        }
        match doctor::table_sizes(&mut db).await {
            Ok(sizes) => findings.extend(sizes::judge(&sizes)),
            Err(error) => findings.push(not_read("The sizes of tables", &error)),
        }
    }
}

/// A privilege that the account lacks is a note; any other error is a risk.
fn not_read(what: &str, error: &sqlx::Error) -> Finding {
    let is_denied = refusal(error) == Some(Refusal::Setup);
    let severity = if is_denied { Severity::Note } else { Severity::Risk };
    Finding::new(severity, "not_checked", format!("{what} cannot be read: {}.", describe(error)))
}

/// The destinations of each sink that routes name, or that the newest messages have. Exchanges and topics that depend
/// on a key or a lane are left out.
fn destinations<'a>(config: &'a Config, topics: &[(String, Option<String>)]) -> BTreeMap<&'a str, RoutedDestinations> {
    let routes = Routes::new(&config.routes);
    let mut destinations: BTreeMap<&str, RoutedDestinations> = BTreeMap::new();
    // A text that no topic or type has, to find the routes to one place.
    let unknown = || Some("\u{1}".to_owned());
    let of_routes = config.routes.iter().map(|route| (route.topics.replace('*', "\u{1}"), unknown()));
    for (topic, event_type) in topics.iter().cloned().chain(of_routes) {
        let resolve = |key: &[u8], lane| routes.resolve(&topic, event_type.as_deref(), Some(key), lane);
        let (Ok(one), Ok(other)) = (resolve(b"\x01", 0), resolve(b"\x02", 1)) else { continue };
        let one = one.destination;
        let other = other.destination;
        let known = |text: &String, same: &String| (text == same && !text.contains('\u{1}')).then(|| text.clone());
        let Some(target) = known(&one.target, &other.target) else { continue };
        if let Some((name, _)) = config.sinks.get_key_value(&one.sink) {
            let routing_key = known(&one.routing_key, &other.routing_key);
            destinations.entry(name).or_default().insert((target, routing_key));
        }
    }
    destinations
}

/// Asks the broker for a destination, as `relay replay --to` names it. Returns whether it could be asked.
///
/// # Errors
///
/// The problem of the destination or of its sink.
pub(crate) async fn look_up(sink: &str, config: &SinkConfig, name: &str) -> Result<bool, String> {
    let (target, routing_key) = config.broker().binding().split(name);
    let destinations = RoutedDestinations::from([(target.to_owned(), Some(routing_key.to_owned()))]);
    let findings = look_at_sink(sink, config, Some(&destinations)).await;
    match findings.into_iter().find(|it| it.severity == Severity::Problem) {
        Some(problem) => Err(problem.evidence),
        None => Ok(config.of::<KafkaConfig>().is_some() || config.of::<RabbitMqConfig>().is_some()),
    }
}

async fn look_at_sink(name: &str, sink: &SinkConfig, destinations: Option<&RoutedDestinations>) -> Vec<Finding> {
    let reached = match sink.broker().feed(name) {
        Ok(feed) => {
            let reached = feed.sink.check(Instant::now() + DEADLINE).await;
            feed.sink.close().await;
            reached.map_err(|error| error.to_string())
        }
        Err(error) => Err(format!("{error:#}")),
    };
    if let Err(error) = reached {
        let evidence = format!("The sink {name} cannot be used: {error}.");
        return vec![Finding::problem("sink_unreachable", evidence).matters("Its messages wait.")];
    }
    look_closer(name, sink, destinations.unwrap_or(&RoutedDestinations::new())).await
}

/// Looks at the destinations of a sink whose type can be asked for them.
#[cfg_attr(
    not(any(feature = "kafka", feature = "rabbitmq")),
    expect(unused_variables, clippy::unused_async, reason = "this build has no such type")
)]
async fn look_closer(name: &str, sink: &SinkConfig, destinations: &RoutedDestinations) -> Vec<Finding> {
    #[cfg(feature = "kafka")]
    if let Some(config) = sink.of() {
        return kafka::examine(name, config, destinations).await;
    }
    #[cfg(feature = "rabbitmq")]
    if let Some(config) = sink.of() {
        return rabbitmq::examine(name, config, destinations).await;
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Inputs, load};

    #[test]
    fn destinations_are_those_of_routes_and_of_messages() {
        let file = "[database]\nurl = \"mysql://relay@127.0.0.1/shop\"\n[sinks.a]\ntype = \"kafka\"\nbrokers \
                    = \"127.0.0.1:1\"\n[sinks.b]\ntype = \"kafka\"\nbrokers = \"127.0.0.1:1\"\n[[routes]]\ntopics \
                    = \"fixed\"\nsink = \"a\"\ntopic = \"{topic}\"\n[[routes]]\ntopics = \"mail.*\"\nsink \
                    = \"b\"\ntopic = \"mail\"\n[[routes]]\ntopics = \"laned.*\"\nsink = \"b\"\ntopic \
                    = \"l-{lane}\"\n[[routes]]\ntopics = \"*\"\nsink = \"a\"\ntopic = \"x.{topic}\"\n";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("relay.toml");
        std::fs::write(&path, file).unwrap();
        let loaded = load(&Inputs { file: Some(path), ..Inputs::default() }).unwrap();
        let topics = ["orders", "laned.1", "mail.2"].map(|topic| (topic.to_owned(), None));
        let found = destinations(&loaded.config, &topics);
        let places = |sink: &str| found.get(sink).unwrap().iter().map(|(target, _)| target.clone()).collect::<Vec<_>>();
        assert_eq!(places("a"), ["fixed", "x.orders"]);
        assert_eq!(places("b"), ["mail"]);
    }
}
