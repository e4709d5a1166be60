//! The relay and the workers of a transactional outbox for MySQL. Messages come from `mysql-outbox-core`.
//!
//! - [`worker`]: a service works on messages itself, in one transaction with its own writes, without a broker.
//! - [`sink`]: publishing to brokers. [`sink::Sink`] is the trait of a sink, [`sink::conformance`] checks an
//!   implementation, and [`run::Relay`] runs it. The example `custom-sink` is complete.
//! - [`settings`]: those of a relay or a worker; the program `relay` (package `mysql-outbox`) reads them from a file.
//! - [`observe`]: metrics, health, and the listener for both.
//!
//! The other modules are hidden. They exist for the program, for the model of the protocol and for tests, and change
//! without notice. An operator's questions and orders are a stable interface as commands with `--format json`, and over
//! HTTP.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(hidden)]
pub mod binlog;
#[doc(hidden)]
pub mod database;
mod destination;
#[doc(hidden)]
pub mod driver_errors;
mod error;
mod keepers;
mod moment;
pub mod observe;
#[doc(hidden)]
pub mod operate;
#[doc(hidden)]
pub mod pipeline;
#[cfg(test)]
mod properties;
pub mod run;
pub mod settings;
pub mod sink;
#[doc(hidden)]
pub mod state;
pub mod worker;
