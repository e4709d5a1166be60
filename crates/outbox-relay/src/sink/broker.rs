//! The trait of a type of sink, which its settings implement. Each implementation is in the folder or file of its sink.

use std::{any::Any, fmt::Debug, time::Instant};

use async_trait::async_trait;

use super::{Feed, PublishError, arrivals::Arrivals};
use crate::{
    destination::Destination,
    error::RunError,
    settings::{Binding, sink_type::SinkSection},
};

/// The settings of a type of sink, and what they answer for it.
#[async_trait]
pub trait Broker: Any + Debug + Send + Sync {
    /// Makes the sink of this name. Needs no network. A build without the type's client has no implementation.
    ///
    /// # Errors
    ///
    /// If the settings cannot be used, or the type was left out of this build.
    fn feed(&self, name: &str) -> Result<Feed, RunError> {
        let system = self.system();
        Err(RunError::configuration(format!("this relay was built without {system}: leave the sink {name} out")))
    }

    /// How it names destinations, and attributes of `CloudEvents`.
    fn binding(&self) -> Binding {
        Binding::KAFKA
    }

    /// Its name in spans: `messaging.system` of OpenTelemetry's conventions.
    fn system(&self) -> &'static str {
        "none"
    }

    /// Whether [`Self::listen`] can read what arrives at this target.
    fn can_listen(&self, _target: &str) -> bool {
        false
    }

    /// Notes settings that do not fit together.
    fn check(&self, _section: &mut dyn SinkSection) {}

    /// Notes files that cannot be used. Only a process that publishes has this checked.
    fn check_files(&self, _section: &mut dyn SinkSection) {}

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
