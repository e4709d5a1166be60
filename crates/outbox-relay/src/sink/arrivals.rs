//! Reads what arrives at a destination, for the canary.

use std::time::Instant;

use async_trait::async_trait;

use super::{Destination, PublishError};
use crate::settings::SinkConfig;

/// The messages that arrive at a destination.
#[async_trait]
pub(crate) trait Arrivals: Send {
    /// Waits for the next message, and returns its payload.
    async fn next(&mut self) -> Result<Vec<u8>, PublishError>;

    /// Ends the connection in order.
    async fn close(self: Box<Self>);
}

/// Listens at a destination from now on, on a connection of its own. `None`: nothing can be read there.
#[cfg_attr(not(any(feature = "kafka", feature = "rabbitmq")), expect(unused_variables, reason = "there is no broker"))]
pub(crate) async fn listen(
    sink: &SinkConfig,
    destination: &Destination,
    deadline: Instant,
) -> Result<Option<Box<dyn Arrivals>>, PublishError> {
    match sink {
        #[cfg(feature = "kafka")]
        SinkConfig::Kafka(config) => {
            let arrivals = super::kafka::KafkaArrivals::listen(config, &destination.target, deadline).await?;
            Ok(Some(Box::new(arrivals)))
        }
        // A queue cannot be read beside its consumers. So there must be an exchange.
        #[cfg(feature = "rabbitmq")]
        SinkConfig::RabbitMq(config) if !destination.target.is_empty() => {
            let arrivals = super::rabbitmq::QueueArrivals::listen(config, destination, deadline).await?;
            Ok(Some(Box::new(arrivals)))
        }
        _ => Ok(None),
    }
}
