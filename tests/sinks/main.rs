//! The sinks: the conformance suite against real brokers, and each broker's own traps.

#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod http_receiver;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "kafka")]
mod kafka_harness;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "rabbitmq")]
mod rabbitmq_channels;
#[cfg(feature = "rabbitmq")]
mod rabbitmq_harness;
mod stdout;
