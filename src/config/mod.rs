//! The effective configuration of the relay.
//!
//! One table (`outbox_relay::settings::keys`) lists all keys. `source` and `file` gather the given values into one flat
//! map. `reader` checks each value against the table, `build` makes the typed [`Config`], and `check` checks several
//! keys together. All problems are collected, and reported at once.

use outbox_relay::settings::{keys, section};

mod authority;
mod build;
mod check;
mod example;
mod file;
mod load;
mod lookup;
mod path;
#[cfg(test)]
mod properties;
mod reader;
mod schema;
mod secret;
mod show;
mod sink;
mod source;
mod value;

pub use outbox_relay::settings::{
    AfterDead, ApiConfig, Binding, Canary, Config, ConsoleConfig, Database, Envelope, Http, KafkaConfig, Log,
    LogFormat, LogLogin, Management, OnRejected, RabbitMqConfig, RelayConfig, Retention, RetryConfig, Role, Route,
    Secret, SinkConfig, Tracing,
};

pub use self::{
    example::{example, reference},
    load::{ConfigError, Loaded, listen_address, load, load_for_database},
    schema::schema,
    show::Effective,
    source::{Inputs, Problem, ValueOrigin, default_file},
};
