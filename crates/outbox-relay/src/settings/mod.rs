//! The settings of a relay or a worker, as plain structs. Each key of the program's configuration is one entry of
//! a table (`sections`, `process`), which says its default, too.

mod kafka;
#[doc(hidden)]
pub mod keys;
mod process;
mod rabbitmq;
mod secret;
#[doc(hidden)]
pub mod section;
mod sections;
#[doc(hidden)]
pub mod sink_type;
#[doc(hidden)]
pub mod value;

use std::{any::Any, collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use outbox_core::{WindowTooShort, check_window};

use self::section::Nothing;
pub use self::{
    kafka::KafkaConfig,
    process::{ApiConfig, Canary, ConsoleConfig, Http, Log, Tracing},
    rabbitmq::{Management, RabbitMqConfig},
    secret::Secret,
    sections::{Database, RelayConfig, Retention, RetryConfig, Route},
};
use crate::sink::broker::Broker;

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
    /// `[console]`
    pub console: ConsoleConfig,
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
            console: ConsoleConfig::read(&Nothing, "", ()),
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

/// The settings of a sink of any type.
#[derive(Debug, Clone)]
pub struct SinkConfig(Arc<dyn Broker>);

impl SinkConfig {
    /// Takes the settings of a type of sink.
    #[must_use]
    pub fn new(settings: impl Broker) -> Self {
        Self(Arc::new(settings))
    }

    /// Returns the settings if they are those of this type.
    #[must_use]
    pub fn of<T: Broker>(&self) -> Option<&T> {
        let settings: &dyn Any = &*self.0;
        settings.downcast_ref()
    }

    /// Returns what the type answers for the sink.
    #[doc(hidden)]
    #[must_use]
    pub fn broker(&self) -> &dyn Broker {
        &*self.0
    }
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

/// How a type of sink names destinations, and the attributes of a `CloudEvent` in headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Binding {
    /// The key of a route that names the target.
    pub target: &'static str,
    /// Whether a routing key is part of a destination.
    pub routing_key: bool,
    /// The prefix of headers that are attributes.
    pub prefix: &'static str,
}

impl Binding {
    /// A topic, and `ce_id`.
    pub const KAFKA: Self = Self { target: "topic", routing_key: false, prefix: "ce_" };
    /// An exchange with a routing key, and `cloudEvents:id`.
    pub const AMQP: Self = Self { target: "exchange", routing_key: true, prefix: "cloudEvents:" };

    /// Splits the name of a destination, as operators write it, into target and routing key.
    #[must_use]
    pub fn split(self, name: &str) -> (&str, &str) {
        if self.routing_key { name.split_once('/').unwrap_or((name, "")) } else { (name, "") }
    }
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
