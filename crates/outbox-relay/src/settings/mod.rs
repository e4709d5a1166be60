//! The settings of a relay or a worker, as plain structs. Each key of the program's configuration is one entry of
//! a table (`sections`, `process`), which says its default, too.

#[doc(hidden)]
pub mod keys;
mod process;
mod secret;
#[doc(hidden)]
pub mod section;
mod sections;
#[doc(hidden)]
pub mod value;

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use outbox_core::{WindowTooShort, check_window};
use url::Url;

use self::section::Nothing;
pub use self::{
    process::{ApiConfig, Canary, Http, Log, Tracing},
    secret::Secret,
    sections::{Database, KafkaConfig, RabbitMqConfig, RelayConfig, Retention, RetryConfig, Route},
};

/// All settings. Those of the program come from its file, the environment and flags.
#[derive(Debug, Clone)]
#[non_exhaustive]
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
    /// `[api]`
    pub api: ApiConfig,
    /// `[log]`
    pub log: Log,
    /// `[tracing]`
    pub tracing: Tracing,
    /// `[canary]`
    pub canary: Canary,
    /// `[sinks.<name>]`
    pub sinks: BTreeMap<String, SinkConfig>,
    /// `[[routes]]`: the first whose pattern matches the topic decides.
    pub routes: Vec<Route>,
}

/// Defaults, without database, sinks and routes.
impl Default for Config {
    fn default() -> Self {
        Self {
            database: Database::read(&Nothing, "", (Secret::new(""), None, None)),
            relay: RelayConfig::read(&Nothing, "", (default_owner(),)),
            retry: RetryConfig::read(&Nothing, "", ()),
            retention: Retention::read(&Nothing, "", ()),
            http: Http::read(&Nothing, "", ()),
            api: ApiConfig::read(&Nothing, "", ()),
            log: Log::read(&Nothing, "", ()),
            tracing: Tracing::read(&Nothing, "", (None,)),
            canary: Canary::read(&Nothing, "", (None,)),
            sinks: BTreeMap::new(),
            routes: Vec::new(),
        }
    }
}

/// Returns the name of a process without one of its own: host and process id, in ASCII like the column.
#[doc(hidden)]
#[must_use]
pub fn default_owner() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host: String = name.chars().filter(char::is_ascii_graphic).take(70).collect();
    format!("{host}-{}", std::process::id())
}

/// Whether a host is this machine.
#[doc(hidden)]
#[must_use]
pub fn is_local(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The rights that a question or an order needs. Each role includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// To look, without keys, headers and payloads.
    Viewer,
    /// To see keys, headers and payloads, too, each with a reason.
    Revealer,
    /// To give orders.
    Operator,
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

/// An account that reads the binary log.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LogLogin {
    /// Its name.
    pub user: String,
    /// Its password.
    pub password: Option<Secret>,
}

/// RabbitMQ's management API.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Management {
    /// `https://user:password@host:port`; without a user those of the sink.
    pub url: Secret,
    /// The password, if it is not part of the URL.
    pub password: Option<Secret>,
}

impl Retention {
    /// Checks that the inbox remembers messages for as long as a sent message can be sent again.
    #[doc(hidden)]
    pub fn check_window(&self) -> Result<(), WindowTooShort> {
        check_window(self.inbox, if self.sent.is_zero() { Duration::MAX } else { self.sent })
    }
}

impl LogLogin {
    /// Returns this account.
    #[must_use]
    pub const fn new(user: String, password: Option<Secret>) -> Self {
        Self { user, password }
    }
}

impl Management {
    /// Returns the API at this URL, with a password that is given apart.
    #[must_use]
    pub const fn new(url: Secret, password: Option<Secret>) -> Self {
        Self { url, password }
    }
}

impl KafkaConfig {
    /// Returns a cluster (`host:port`, several separated by commas) without further properties.
    #[must_use]
    pub fn new(brokers: impl Into<String>) -> Self {
        Self { properties: BTreeMap::new(), brokers: brokers.into() }
    }
}

impl RetryConfig {
    /// Returns these retries: the bounds of the first wait and of all, and the number of attempts after which a message
    /// is dead.
    #[must_use]
    pub const fn new(base: Duration, max: Duration, max_attempts: usize) -> Self {
        Self { base, max, max_attempts }
    }
}

impl Route {
    /// Returns a route of these topics to this sink, with the target `{topic}` and defaults for everything else.
    #[must_use]
    pub fn new(topics: impl Into<String>, sink: impl Into<String>) -> Self {
        Self {
            target: "{topic}".to_owned(),
            routing_key: String::new(),
            pipelined: false,
            envelope: Envelope::Raw,
            retry: None,
            topics: topics.into(),
            sink: sink.into(),
            on_rejected: OnRejected::Dead,
            after_dead: AfterDead::Skip,
            source: String::new(),
        }
    }
}

impl RabbitMqConfig {
    /// Returns a node without files for TLS, with four channels of 512 messages.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        let url = Secret::new(url);
        Self {
            url,
            password: None,
            management: None,
            ca_file: None,
            certificate_file: None,
            key_file: None,
            channels: 4,
            window: 512,
        }
    }

    /// Returns the URL with the password in it, both with their files' current contents; `None` if the URL cannot be
    /// parsed.
    #[must_use]
    pub fn address(&self) -> Option<Url> {
        let mut url = Url::parse(&self.url.current()).ok()?;
        if let Some(password) = &self.password {
            url.set_password(Some(&password.for_url())).ok()?;
        }
        Some(url)
    }
}

impl RelayConfig {
    /// Returns the longest time for which a publish and its settlement can work under a lease.
    pub(crate) fn under_lease(&self) -> Duration {
        self.publish_deadline + self.settle_deadline
    }

    /// Returns the shortest lease that no publish and settlement outlast.
    #[must_use]
    pub fn shortest_lease(&self) -> Duration {
        self.under_lease() + self.safety
    }
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
