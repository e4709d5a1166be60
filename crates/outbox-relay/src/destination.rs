//! Where a message goes.

use std::fmt::{self, Display, Formatter};

/// The place to which a sink delivers a message, as the route resolved it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Destination {
    /// The sink's name in the configuration.
    pub sink: String,
    /// A Kafka topic, or a RabbitMQ exchange (empty: the default exchange).
    pub target: String,
    /// RabbitMQ's routing key; empty on Kafka.
    pub routing_key: String,
}

impl Destination {
    /// Creates a destination; without a routing key for any sink but RabbitMQ's.
    #[must_use]
    pub fn new(sink: impl Into<String>, target: impl Into<String>, routing_key: impl Into<String>) -> Self {
        Self { sink: sink.into(), target: target.into(), routing_key: routing_key.into() }
    }
}

/// As in `relay pause --destination`. The routing key is left out, because it may have a part of the message's key.
impl Display for Destination {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.sink, self.target)
    }
}
