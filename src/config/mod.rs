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
mod process;
mod reader;
mod schema;
mod secret;
mod section;
mod show;
mod source;
mod value;

use std::{collections::BTreeMap, time::Duration};

use url::Url;

pub(crate) use self::{check::is_local, value::duration};
pub use self::{
    example::{example, reference},
    keys::{Database, KafkaConfig, RabbitMqConfig, RelayConfig, Retention, RetryConfig, Route},
    load::{ConfigError, Loaded, defaults, listen_address, load, load_for_database},
    process::{ApiConfig, Canary, Http, Log, Tracing},
    schema::schema,
    secret::Secret,
    show::Effective,
    source::{Inputs, Problem, ValueOrigin, default_file},
};
pub use crate::operate::Role;

/// The effective configuration: defaults, overridden by the file, the environment and flags, in this order.
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

/// The form of a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// A broker.
#[derive(Debug, Clone)]
#[non_exhaustive]
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

/// RabbitMQ's management API.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Management {
    /// `https://user:password@host:port`; without a user those of the sink.
    pub url: Secret,
    /// The password, if it is not part of the URL.
    pub password: Option<Secret>,
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

/// The shape of messages on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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
#[non_exhaustive]
pub enum Binding {
    /// `ce_id`.
    Kafka,
    /// `cloudEvents:id`.
    Amqp,
}

/// The outcome of a rejected message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnRejected {
    /// It is dead at once.
    Dead,
    /// It is tried again up to the limit of attempts.
    Retry,
}

/// The effect of a dead message on its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterDead {
    /// Later messages of the key go on.
    Skip,
    /// Later messages of the key wait until the dead one is retried or discarded.
    Block,
}
