//! The effective configuration of the relay.
//!
//! One table (`keys`) lists all keys. `source` and `file` gather the given values into one flat map. `reader` checks
//! each value against the table, `build` makes the typed [`Config`], and `check` checks several keys together. All
//! problems are collected, and reported at once.

mod authority;
mod build;
mod check;
mod example;
mod file;
mod keys;
mod load;
mod lookup;
mod path;
mod reader;
mod secret;
mod show;
mod source;
mod value;

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use url::Url;

pub(crate) use self::check::is_local;
pub use self::{
    example::{example, reference},
    load::{ConfigError, Loaded, defaults, listen_address, load, load_for_database},
    secret::Secret,
    show::Effective,
    source::{Inputs, Problem, ValueOrigin, default_file},
};

/// The effective configuration: defaults, overridden by the file, the environment and flags, in this order.
#[derive(Debug, Clone)]
pub struct Config {
    /// `[database]`
    pub database: Database,
    /// `[relay]`
    pub relay: RelayConfig,
    /// `[retry]`
    pub retry: RetryConfig,
    /// `[retention]`
    pub retention: Retention,
    /// `[http]`
    pub http: Http,
    /// `[log]`
    pub log: Log,
    /// `[sinks.<name>]`
    pub sinks: BTreeMap<String, SinkConfig>,
    /// `[[routes]]`: the first whose pattern matches the topic decides.
    pub routes: Vec<Route>,
}

/// The database of the tables.
#[derive(Debug, Clone)]
pub struct Database {
    /// `mysql://user@host:port/database`, and the password if it is not given apart.
    pub url: Secret,
    /// The password, if it is not part of the URL.
    pub password: Option<Secret>,
    /// Whether the password may go to another machine without TLS.
    pub plaintext: bool,
}

/// The settings of claiming and publishing.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// The name under which this process holds claims; by default host and process id. A random suffix is added to
    /// either.
    pub owner: String,
    /// The lanes that this relay serves; none named: all.
    pub lanes: Vec<u16>,
    /// The time that a claim is valid without renewal.
    pub lease: Duration,
    /// The time that one publish may take.
    pub publish_deadline: Duration,
    /// The time that writing back its outcome may take.
    pub settle_deadline: Duration,
    /// The time that messages wait for a destination that refuses all, before one of them counts as rejected.
    pub unroutable_grace: Duration,
    /// The rest of the lease after both deadlines.
    pub safety: Duration,
    /// The longest transaction that a service keeps open after it has enqueued (see ARCHITECTURE.md, the claim).
    pub max_transaction_age: Duration,
    /// Most messages of one claim.
    pub claim_messages: usize,
    /// Most bytes of one claim; a larger message is claimed alone.
    pub claim_bytes: usize,
    /// Most messages that are claimed and not settled.
    pub in_flight_messages: usize,
    /// Most bytes that are claimed and not published.
    pub in_flight_bytes: usize,
    /// Connections that read payloads.
    pub readers: usize,
    /// Connections that write outcomes back.
    pub settlers: usize,
    /// The shortest time from one small claim of a lane to the next.
    pub claim_interval: Duration,
    /// The longest pause between two looks into an empty queue.
    pub poll_interval: Duration,
    /// The time that a stop may take, before messages in flight are given up.
    pub stop_deadline: Duration,
}

/// The retries of a message that was not confirmed.
#[derive(Debug, Clone)]
pub struct RetryConfig {
    /// Upper bound of the first wait; each further bound is twice the last (exponential, full jitter).
    pub base: Duration,
    /// Upper bound of every wait.
    pub max: Duration,
    /// After this number of attempts the message is dead.
    pub max_attempts: u32,
}

/// The retention of rows; zero means for ever.
#[derive(Debug, Clone)]
pub struct Retention {
    /// Sent messages and their receipts.
    pub sent: Duration,
    /// Dead messages.
    pub dead: Duration,
    /// Rows of the inbox.
    pub inbox: Duration,
}

/// The listener for `/metrics`, `/livez` and `/readyz`.
#[derive(Debug, Clone)]
pub struct Http {
    /// Its address; `None`: no listener.
    pub listen: Option<SocketAddr>,
}

/// Logs, on standard error.
#[derive(Debug, Clone)]
pub struct Log {
    /// A filter as `tracing_subscriber::EnvFilter` reads it, for example `info`.
    pub level: String,
    /// Text for people or JSON for programs.
    pub format: LogFormat,
}

/// The form of a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// A broker.
#[derive(Debug, Clone)]
pub enum SinkConfig {
    /// Kafka.
    Kafka(KafkaConfig),
    /// RabbitMQ.
    RabbitMq(RabbitMqConfig),
    /// One JSON line per message on standard output.
    Stdout,
    /// Confirms everything and sends nothing: for measuring.
    Null,
}

/// A Kafka cluster.
#[derive(Debug, Clone)]
pub struct KafkaConfig {
    /// `host:port`, several separated by commas.
    pub brokers: String,
    /// Properties of librdkafka; those that would weaken the guarantees are refused.
    pub properties: BTreeMap<String, Secret>,
}

/// A RabbitMQ node or cluster.
#[derive(Debug, Clone)]
pub struct RabbitMqConfig {
    /// `amqp://user:password@host:port/vhost`.
    pub url: Secret,
    /// The password, if it is not part of the URL.
    pub password: Option<Secret>,
    /// Certificates of the authorities to trust, as PEM; `None`: those of the system.
    pub ca_file: Option<PathBuf>,
    /// A certificate to show, and its chain, as PEM.
    pub certificate_file: Option<PathBuf>,
    /// The key of that certificate, as PEM.
    pub key_file: Option<PathBuf>,
    /// Channels that publish at the same time.
    pub channels: usize,
    /// Most unconfirmed messages of one channel.
    pub window: usize,
}

impl RabbitMqConfig {
    /// Returns a node without files for TLS, with four channels of 512 messages.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        let url = Secret::new(url);
        Self { url, password: None, ca_file: None, certificate_file: None, key_file: None, channels: 4, window: 512 }
    }

    /// Returns the URL with the password in it, both with their files' current contents; `None` if the URL cannot be
    /// parsed.
    #[must_use]
    pub fn address(&self) -> Option<Url> {
        let mut url = Url::parse(&self.url.current()).ok()?;
        if let Some(password) = &self.password {
            url.set_password(Some(&password.current())).ok()?;
        }
        Some(url)
    }
}

/// A rule for the destination of messages.
#[derive(Debug, Clone)]
pub struct Route {
    /// Topics, with `*` for any number of characters.
    pub topics: String,
    /// The sink's name.
    pub sink: String,
    /// Kafka topic or RabbitMQ exchange; `{topic}`, `{type}` and `{lane}` are replaced.
    pub target: String,
    /// RabbitMQ's routing key; `{topic}`, `{type}`, `{key}` and `{lane}` are replaced.
    pub routing_key: String,
    /// The outcome of a message that the broker rejects.
    pub on_rejected: OnRejected,
    /// The effect of a dead message on the later ones of its key.
    pub after_dead: AfterDead,
    /// Whether a key may have several unconfirmed messages on a sink that does not keep their order.
    pub pipelined: bool,
    /// The shape that its messages have on the wire.
    pub envelope: Envelope,
    /// The attribute `source` of CloudEvents; `{topic}` and `{lane}` are replaced.
    pub source: String,
}

/// The shape of messages on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Envelope {
    /// The message as it is.
    Raw,
    /// The payload as it is, and the attributes of a `CloudEvent` as headers.
    CloudEventsBinary(Binding),
    /// A `CloudEvent` in JSON with the payload in it.
    CloudEventsJson(Binding),
    /// The payload as it is, and the headers of Debezium's outbox event router.
    Debezium,
}

/// The names of CloudEvents attributes in headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// `ce_id`.
    Kafka,
    /// `cloudEvents:id`.
    Amqp,
}

/// The outcome of a rejected message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnRejected {
    /// It is dead at once.
    Dead,
    /// It is tried again up to the limit of attempts.
    Retry,
}

/// The effect of a dead message on its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterDead {
    /// Later messages of the key go on.
    Skip,
    /// Later messages of the key wait until the dead one is retried or discarded.
    Block,
}
