//! Metrics, health, and the HTTP listener for both.

pub mod health;
pub mod http;
pub mod metrics;
