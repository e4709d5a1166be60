//! Metrics, health, the HTTP listener for both, and spans.

pub mod health;
pub mod http;
pub mod metrics;
pub(crate) mod traces;
