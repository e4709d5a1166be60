//! The relay as a library: see the binary `relay` and ARCHITECTURE.md.

#[cfg(feature = "rabbitmq")]
mod backoff;
pub mod config;
pub mod sink;
