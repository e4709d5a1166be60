//! From texts to the effective configuration; all problems at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use super::{
    AfterDead, Config, Database, Http, Kafka, Log, LogFormat, OnRejected, RabbitMq, Relay, Retention, Retry, Route,
    Secret, Sink,
    keys::{self, KEYS, Kind},
    source::{self, Problem, Raw, Settings},
    value,
};

/// The effective configuration, and each setting with where it came from.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The settings.
    pub settings: Settings,
}

/// Loads the configuration: defaults, then the file, then the environment, then flags (`place`, `text`, name of the flag).
pub fn load(
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
    flags: impl IntoIterator<Item = (String, String, String)>,
) -> Result<Loaded, Vec<Problem>> {
    let (mut settings, mut problems) = (Settings::new(), Vec::new());
    if let Some(file) = file {
        source::file(file, &mut settings, &mut problems);
    }
    source::environment(environment, &mut settings);
    settings.extend(flags.into_iter().map(|(place, text, origin)| (place, Raw { text, origin })));
    effective(settings, problems)
}

/// Makes the configuration of settings that were collected.
pub fn effective(mut settings: Settings, mut problems: Vec<Problem>) -> Result<Loaded, Vec<Problem>> {
    problems.extend(settings.iter().filter(|(path, _)| keys::find(path).is_none()).map(unknown));
    read_secrets(&mut settings, &mut problems);
    let mut reader = Reader { settings, problems: Vec::new() };
    let config = reader.config();
    if reader.problems.is_empty() {
        // Sums of values that could not be read would only confuse.
        check(&config, &mut reader.problems);
    }
    reader.problems.splice(0..0, problems);
    if reader.problems.is_empty() { Ok(Loaded { config, settings: reader.settings }) } else { Err(reader.problems) }
}

fn unknown((path, raw): (&String, &Raw)) -> Problem {
    let hint = keys::nearest(path).map_or_else(
        || "see `relay config example` for all settings".to_owned(),
        |near| format!("did you mean {near}?"),
    );
    format!("{}: unknown setting {path}: {hint}", raw.origin)
}

/// Replaces each `…_file` by what the file holds.
fn read_secrets(settings: &mut Settings, problems: &mut Vec<Problem>) {
    let files: Vec<String> = settings.keys().filter(|path| is_secret_file(path)).cloned().collect();
    for path in files {
        let (Some(raw), Some(secret)) = (settings.remove(&path), path.strip_suffix("_file")) else { continue };
        if let Some(other) = settings.get(secret) {
            problems.push(format!("{}: {secret} is also set by {}: keep one of the two", raw.origin, other.origin));
            continue;
        }
        match secret_file(&raw.text) {
            Ok(text) => {
                settings.insert(secret.to_owned(), Raw { text, origin: format!("{} ({})", raw.origin, raw.text) });
            }
            Err(problem) => problems.push(format!("{}: {path}: the file {} {problem}", raw.origin, raw.text)),
        }
    }
}

fn is_secret_file(path: &str) -> bool {
    let exact = KEYS.iter().any(|key| key.path == path);
    !exact && path.ends_with("_file") && keys::find(path).is_some() && !path.contains(".properties.")
}

fn secret_file(path: &str) -> Result<String, String> {
    use std::os::unix::fs::PermissionsExt as _;
    let describe = |error: std::io::Error| format!("cannot be read ({error})");
    let mode = std::fs::metadata(path).map_err(describe)?.permissions().mode();
    if mode & 0o007 != 0 {
        return Err("can be read by everyone: run `chmod o= ` on it".to_owned());
    }
    let text = std::fs::read_to_string(path).map_err(describe)?;
    let secret = text.trim_end_matches(['\r', '\n']);
    if secret.is_empty() { Err("is empty".to_owned()) } else { Ok(secret.to_owned()) }
}

/// Reads typed values and collects what is wrong with them.
struct Reader {
    settings: Settings,
    problems: Vec<Problem>,
}

impl Reader {
    fn text(&mut self, path: &str) -> String {
        if let Some(raw) = self.settings.get(path) {
            return raw.text.clone();
        }
        let default = keys::find(path).and_then(|key| key.default);
        let Some(text) = default else {
            self.problems.push(format!("{path} is missing: {}", keys::find(path).map_or("", |key| key.help)));
            return String::new();
        };
        self.settings.insert(path.to_owned(), Raw { text: text.to_owned(), origin: "default".to_owned() });
        text.to_owned()
    }

    fn read<T>(&mut self, path: &str, read: impl Fn(&str) -> Result<T, String>, otherwise: T) -> T {
        let before = self.problems.len();
        let text = self.text(path);
        if self.problems.len() > before {
            return otherwise;
        }
        read(&text).unwrap_or_else(|problem| {
            let origin = self.settings.get(path).map_or("", |raw| raw.origin.as_str());
            self.problems.push(format!("{origin}: {path} {problem}"));
            otherwise
        })
    }

    fn duration(&mut self, path: &str) -> Duration {
        self.read(path, value::duration, Duration::ZERO)
    }

    fn count(&mut self, path: &str) -> usize {
        self.read(path, value::count, 1)
    }

    fn size(&mut self, path: &str) -> usize {
        self.read(path, value::size, 1)
    }

    fn choice(&mut self, path: &str) -> String {
        let Some(Kind::Choice(words)) = keys::find(path).map(|key| key.kind) else { return String::new() };
        let one_of = |text: &str| {
            if words.contains(&text) {
                return Ok(text.to_owned());
            }
            Err(format!("is {text:?}: write one of {}", words.join(", ")))
        };
        self.read(path, one_of, String::new())
    }

    fn config(&mut self) -> Config {
        let sinks = self.names("sinks");
        let routes = self.names("routes");
        if sinks.is_empty() {
            self.problems.push("there is no sink: add [sinks.<name>] with a type".to_owned());
        }
        if routes.is_empty() {
            self.problems.push("there is no route: add [[routes]] with topics and a sink".to_owned());
        }
        let sinks: BTreeMap<String, Sink> =
            sinks.into_iter().filter_map(|name| Some((name.clone(), self.sink(&name)?))).collect();
        let routes = routes.iter().map(|number| self.route(number, &sinks)).collect();
        Config {
            database: self.database(),
            relay: self.relay(),
            retry: self.retry(),
            retention: self.retention(),
            http: Http { listen: self.read("http.listen", value::address, None) },
            log: self.log(),
            sinks,
            routes,
        }
    }

    /// The names of the sinks, or the numbers of the routes.
    fn names(&self, section: &str) -> BTreeSet<String> {
        let name = |path: &String| {
            let (head, rest) = path.split_once('.')?;
            (head == section).then(|| rest.split('.').next().unwrap_or_default().to_owned())
        };
        self.settings.keys().filter_map(name).collect()
    }

    fn database(&mut self) -> Database {
        let url = Secret(self.text("database.url"));
        let password = Some(self.text("database.password")).filter(|password| !password.is_empty()).map(Secret);
        Database { url, password }
    }

    fn relay(&mut self) -> Relay {
        let owner = self.text("relay.owner");
        Relay {
            owner: if owner.is_empty() { default_owner() } else { owner },
            lanes: self.read("relay.lanes", value::lanes, Vec::new()),
            lease: self.duration("relay.lease"),
            publish_deadline: self.duration("relay.publish_deadline"),
            settle_deadline: self.duration("relay.settle_deadline"),
            safety: self.duration("relay.safety"),
            max_transaction_age: self.duration("relay.max_transaction_age"),
            claim_messages: self.count("relay.claim_messages"),
            claim_bytes: self.size("relay.claim_bytes"),
            in_flight_messages: self.count("relay.in_flight_messages"),
            in_flight_bytes: self.size("relay.in_flight_bytes"),
            readers: self.count("relay.readers"),
            settlers: self.count("relay.settlers"),
            poll_interval: self.duration("relay.poll_interval"),
            stop_deadline: self.duration("relay.stop_deadline"),
        }
    }

    fn retry(&mut self) -> Retry {
        Retry {
            base: self.duration("retry.base"),
            max: self.duration("retry.max"),
            max_attempts: u32::try_from(self.count("retry.max_attempts")).unwrap_or(u32::MAX),
        }
    }

    fn retention(&mut self) -> Retention {
        Retention {
            sent: self.duration("retention.sent"),
            dead: self.duration("retention.dead"),
            inbox: self.duration("retention.inbox"),
        }
    }

    fn log(&mut self) -> Log {
        let json = self.choice("log.format") == "json";
        Log { level: self.text("log.level"), format: if json { LogFormat::Json } else { LogFormat::Text } }
    }

    fn sink(&mut self, name: &str) -> Option<Sink> {
        let place = |key: &str| format!("sinks.{name}.{key}");
        match self.choice(&place("type")).as_str() {
            "kafka" => {
                let properties = self.properties(&place("properties."));
                Some(Sink::Kafka(Kafka { brokers: self.text(&place("brokers")), properties }))
            }
            "rabbitmq" => Some(Sink::RabbitMq(RabbitMq {
                url: Secret(self.text(&place("url"))),
                channels: self.count(&place("channels")),
                window: self.count(&place("window")),
            })),
            "stdout" => Some(Sink::Stdout),
            "null" => Some(Sink::Null),
            _ => None,
        }
    }

    fn properties(&mut self, place: &str) -> BTreeMap<String, Secret> {
        let property =
            |(path, raw): (&String, &Raw)| Some((path.strip_prefix(place)?.to_owned(), Secret(raw.text.clone())));
        let properties = self.settings.iter().filter_map(property).collect();
        #[cfg(feature = "kafka")]
        for problem in crate::sink::kafka::check_properties(&properties) {
            self.problems.push(format!("{}: {problem}", place.trim_end_matches('.')));
        }
        properties
    }

    fn route(&mut self, number: &str, sinks: &BTreeMap<String, Sink>) -> Route {
        let place = |key: &str| format!("routes.{number}.{key}");
        let sink = self.text(&place("sink"));
        let rabbit = matches!(sinks.get(&sink), Some(Sink::RabbitMq(_)));
        if !sink.is_empty() && !sinks.contains_key(&sink) {
            let known: Vec<_> = sinks.keys().map(String::as_str).collect();
            let origin = self.settings.get(&place("sink")).map_or("", |raw| raw.origin.as_str());
            self.problems.push(format!("{origin}: there is no sink {sink}: there is {}", known.join(", ")));
        }
        Route {
            topics: self.text(&place("topics")),
            target: self.text(&place(if rabbit { "exchange" } else { "topic" })),
            routing_key: if rabbit { self.text(&place("routing_key")) } else { String::new() },
            sink,
            on_rejected: if self.choice(&place("on_rejected")) == "retry" {
                OnRejected::Retry
            } else {
                OnRejected::Dead
            },
            after_dead: if self.choice(&place("after_dead")) == "block" { AfterDead::Block } else { AfterDead::Skip },
            pipelined: self.choice(&place("order")) == "pipelined",
        }
    }
}

/// What a single value cannot show: sums and proportions.
fn check(config: &Config, problems: &mut Vec<Problem>) {
    let relay = &config.relay;
    let (publish, settle, safety, lease) = (relay.publish_deadline, relay.settle_deadline, relay.safety, relay.lease);
    if publish + settle + safety > lease {
        problems.push(format!(
            "relay.publish_deadline {publish:?} + relay.settle_deadline {settle:?} + relay.safety {safety:?} is more than \
             relay.lease {lease:?}: raise the lease or lower the deadlines, or a message could be sent by two relays"
        ));
    }
    if publish.is_zero() || settle.is_zero() || lease.is_zero() {
        problems.push("relay.lease, relay.publish_deadline and relay.settle_deadline must be more than 0".to_owned());
    }
    if relay.in_flight_messages < relay.claim_messages {
        problems.push("relay.in_flight_messages must be at least relay.claim_messages".to_owned());
    }
    if relay.in_flight_bytes < relay.claim_bytes {
        problems.push("relay.in_flight_bytes must be at least relay.claim_bytes".to_owned());
    }
    let owner = &relay.owner;
    if owner.len() > 80 || !owner.bytes().all(|byte| byte.is_ascii_graphic()) {
        problems.push(format!("relay.owner {owner:?} must have at most 80 printable ASCII characters"));
    }
    if !config.database.url.0.is_empty() && crate::database::options(&config.database).is_err() {
        problems.push("database.url cannot be read: write mysql://user@host:port/database".to_owned());
    }
}

fn default_owner() -> String {
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(char::is_ascii_graphic).take(60).collect();
    let host = if host.is_empty() { "relay" } else { host.as_str() };
    format!("{host}-{}", std::process::id())
}
