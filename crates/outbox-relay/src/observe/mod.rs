//! Metrics, health, the HTTP listener for both, and spans.

#[cfg(feature = "http-client")]
#[doc(hidden)]
pub mod client;
pub mod health;
pub mod http;
pub mod metrics;
pub(crate) mod traces;
