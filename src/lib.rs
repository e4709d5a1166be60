//! The relay and the workers of a transactional outbox for MySQL. Messages come from `outbox-core`.
//!
//! - [`worker`]: a service works on messages itself, in one transaction with its own writes, without a broker.
//! - [`sink`]: what publishes. [`sink::Sink`] is the trait of one's own, [`sink::conformance`] says whether it keeps its promises, and
//!   [`run::Relay`] runs it; the example `custom-sink` is a whole one.
//! - [`cli`]: the program `relay`, with its [`config`] and [`metrics`].
//!
//! The other modules are hidden: they are there for the model of the protocol and for tests, and change without notice.

mod backoff;
#[doc(hidden)]
pub mod capacity;
#[doc(hidden)]
pub mod chains;
#[doc(hidden)]
pub mod claim;
pub mod cli;
pub mod config;
#[doc(hidden)]
pub mod context;
mod crash;
#[doc(hidden)]
pub mod database;
mod destination;
pub mod envelope;
mod explain;
#[doc(hidden)]
pub mod floor;
#[doc(hidden)]
pub mod gauges;
pub mod health;
pub mod http;
#[doc(hidden)]
pub mod lanes;
#[doc(hidden)]
pub mod leases;
pub mod metrics;
pub mod outlet;
#[doc(hidden)]
pub mod promote;
#[cfg(test)]
mod properties;
#[doc(hidden)]
pub mod publish;
#[doc(hidden)]
pub mod purge;
#[doc(hidden)]
pub mod queues;
#[doc(hidden)]
pub mod read;
#[doc(hidden)]
pub mod renew;
#[doc(hidden)]
pub mod retry;
#[doc(hidden)]
pub mod route;
pub mod run;
#[doc(hidden)]
pub mod session;
#[doc(hidden)]
pub mod settle;
pub mod sink;
#[doc(hidden)]
pub mod takeover;
#[doc(hidden)]
pub mod window;
pub mod worker;
