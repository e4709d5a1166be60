//! Makes the sinks that the configuration names.

use std::sync::Arc;

use super::Sink;
use crate::config::SinkConfig;

/// A sink, and the limits of what it gets at a time.
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

/// Makes the sink that the configuration names.
pub(crate) fn feed(name: &str, sink: &SinkConfig) -> anyhow::Result<Feed> {
    let (sink, batches, batch): (Arc<dyn Sink>, usize, usize) = match sink {
        #[cfg(feature = "kafka")]
        SinkConfig::Kafka(kafka) => (Arc::new(super::kafka::Kafka::new(name, kafka)?), 64, 1000),
        #[cfg(feature = "rabbitmq")]
        SinkConfig::RabbitMq(rabbit) => {
            (Arc::new(super::rabbitmq::RabbitMq::new(name, rabbit)?), rabbit.channels, rabbit.window)
        }
        SinkConfig::Stdout => (Arc::new(super::stdout::Stdout::new()), 1, 1000),
        SinkConfig::Null => (Arc::new(super::null::Null), 64, 1000),
        #[cfg(not(feature = "kafka"))]
        SinkConfig::Kafka(_) => anyhow::bail!("this relay was built without Kafka: leave the sink {name} out"),
        #[cfg(not(feature = "rabbitmq"))]
        SinkConfig::RabbitMq(_) => anyhow::bail!("this relay was built without RabbitMQ: leave the sink {name} out"),
    };
    Ok(Feed { name: name.to_owned(), sink, batches, batch })
}
