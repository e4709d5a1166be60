//! The trait of a type of sink, which its settings implement. Each implementation is in the folder or file of its sink.

use std::time::Instant;

use async_trait::async_trait;

use super::{Feed, PublishError, arrivals::Arrivals, null::Null, stdout};
use crate::{
    destination::Destination,
    error::RunError,
    settings::{Binding, SinkConfig},
};

/// The settings of a type of sink, and what they answer for it.
#[async_trait]
pub trait Broker: Send + Sync {
    /// Makes the sink of this name. Needs no network.
    ///
    /// # Errors
    ///
    /// If the settings cannot be used, or the type was left out of this build.
    fn feed(&self, name: &str) -> Result<Feed, RunError>;

    /// The names of `CloudEvents` attributes in its headers.
    fn binding(&self) -> Binding {
        Binding::Kafka
    }

    /// Its name in spans: `messaging.system` of OpenTelemetry's conventions.
    fn system(&self) -> &'static str {
        "none"
    }

    /// Listens at a destination from now on, on a connection of its own. `None`: nothing can be read there.
    ///
    /// # Errors
    ///
    /// If the destination cannot be read.
    async fn listen(
        &self,
        _destination: &Destination,
        _deadline: Instant,
    ) -> Result<Option<Box<dyn Arrivals>>, PublishError> {
        Ok(None)
    }
}

impl SinkConfig {
    /// The type of the sink. A new type has its line here.
    #[doc(hidden)]
    #[must_use]
    pub fn broker(&self) -> &dyn Broker {
        match self {
            Self::Kafka(kafka) => kafka,
            Self::RabbitMq(rabbit) => rabbit,
            Self::Stdout => &stdout::OwnOutput,
            Self::Null => &Null,
        }
    }
}

/// A type that this build lacks.
#[cfg(not(all(feature = "kafka", feature = "rabbitmq")))]
mod left_out {
    use super::{Broker, Feed, RunError};

    fn left_out(name: &str, broker: &str) -> Result<Feed, RunError> {
        Err(RunError::configuration(format!("this relay was built without {broker}: leave the sink {name} out")))
    }

    #[cfg(not(feature = "kafka"))]
    impl Broker for crate::settings::KafkaConfig {
        fn feed(&self, name: &str) -> Result<Feed, RunError> {
            left_out(name, "Kafka")
        }

        fn system(&self) -> &'static str {
            "kafka"
        }
    }

    #[cfg(not(feature = "rabbitmq"))]
    impl Broker for crate::settings::RabbitMqConfig {
        fn feed(&self, name: &str) -> Result<Feed, RunError> {
            left_out(name, "RabbitMQ")
        }

        fn binding(&self) -> crate::settings::Binding {
            crate::settings::Binding::Amqp
        }

        fn system(&self) -> &'static str {
            "rabbitmq"
        }
    }
}
