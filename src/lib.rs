//! The relay as a library: see the binary `relay` and ARCHITECTURE.md.

mod backoff;
pub mod chains;
pub mod claim;
pub mod cli;
pub mod config;
pub mod context;
mod crash;
pub mod database;
pub mod envelope;
pub mod floor;
pub mod gauges;
pub mod health;
pub mod http;
pub mod lanes;
pub mod leases;
pub mod metrics;
pub mod outlet;
pub mod promote;
#[cfg(test)]
mod properties;
pub mod publish;
pub mod purge;
pub mod read;
pub mod renew;
pub mod retry;
pub mod route;
pub mod run;
pub mod session;
pub mod settle;
pub mod sink;
pub mod takeover;
pub mod window;
pub mod worker;
