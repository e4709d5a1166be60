//! Makes the sinks that the configuration names.

use std::sync::Arc;

use super::{Sink, apart::Apart};
use crate::{error::RunError, settings::SinkConfig};

/// A sink, and the limits of what it gets at a time.
#[non_exhaustive]
pub struct Feed {
    /// Its name in the configuration.
    pub name: String,
    /// The sink.
    pub sink: Arc<dyn Sink>,
    /// Most batches in flight.
    pub batches: usize,
    /// Most messages of a batch.
    pub batch: usize,
}

impl Feed {
    /// Creates the feed of a sink, with at most this number of batches in flight, and of messages in a batch. The sink
    /// gets a thread of its own, so that it holds up no other if it blocks.
    #[must_use]
    pub fn new(name: impl Into<String>, sink: Arc<dyn Sink>, batches: usize, batch: usize) -> Self {
        let name = name.into();
        Self { sink: Arc::new(Apart::new(&name, sink)), name, batches: batches.max(1), batch: batch.max(1) }
    }
}

/// Makes the sink that the configuration names.
pub fn feed(name: &str, sink: &SinkConfig) -> Result<Feed, RunError> {
    let (sink, batches, batch): (Arc<dyn Sink>, usize, usize) = match sink {
        #[cfg(feature = "kafka")]
        SinkConfig::Kafka(kafka) => {
            (Arc::new(super::kafka::Kafka::new(name, kafka).map_err(RunError::configuration)?), 64, 1000)
        }
        #[cfg(feature = "rabbitmq")]
        SinkConfig::RabbitMq(rabbit) => {
            let sink = super::rabbitmq::RabbitMq::new(name, rabbit).map_err(RunError::configuration)?;
            (Arc::new(sink), rabbit.channels, rabbit.window)
        }
        // Its reader may stop.
        SinkConfig::Stdout => return Ok(Feed::new(name, Arc::new(super::stdout::Stdout::new()), 1, 1000)),
        SinkConfig::Null => (Arc::new(super::null::Null), 64, 1000),
        #[cfg(not(feature = "kafka"))]
        SinkConfig::Kafka(_) => return Err(left_out(name, "Kafka")),
        #[cfg(not(feature = "rabbitmq"))]
        SinkConfig::RabbitMq(_) => return Err(left_out(name, "RabbitMQ")),
    };
    Ok(Feed { name: name.to_owned(), sink, batches: batches.max(1), batch: batch.max(1) })
}

#[cfg(not(all(feature = "kafka", feature = "rabbitmq")))]
fn left_out(name: &str, broker: &str) -> RunError {
    RunError::configuration(format!("this relay was built without {broker}: leave the sink {name} out"))
}
