//! The connection in use, and the time of the next try to connect.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::session::BrokerSession;
use crate::{config::RabbitMqConfig, sink::PublishError, state::backoff::Backoff};

/// The shortest and the longest wait between two tries to connect.
const WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The time that connecting may take.
const CONNECT: Duration = Duration::from_secs(5);

/// Holds one connection, and replaces it when it is unusable.
pub(super) struct Link {
    name: String,
    config: RabbitMqConfig,
    session: Option<Arc<BrokerSession>>,
    backoff: Backoff,
    down: Option<(Instant, PublishError)>,
}

impl Link {
    pub(super) fn new(name: &str, config: RabbitMqConfig) -> Self {
        let backoff = Backoff::new(WAIT.0, WAIT.1);
        Self { name: name.to_owned(), config, session: None, backoff, down: None }
    }

    /// Returns a connection that takes messages.
    pub(super) async fn session(&mut self, deadline: Instant) -> Result<Arc<BrokerSession>, PublishError> {
        match &self.session {
            Some(session) if session.is_blocked() => return Err(blocked()),
            Some(session) if session.is_usable() => return Ok(Arc::clone(session)),
            _ => self.session = None,
        }
        match &self.down {
            Some((until, error)) if Instant::now() < *until => Err(error.clone()),
            _ => self.connect(deadline).await,
        }
    }

    async fn connect(&mut self, deadline: Instant) -> Result<Arc<BrokerSession>, PublishError> {
        let deadline = deadline.min(Instant::now() + CONNECT);
        match BrokerSession::connect(&self.config, &self.name, deadline).await {
            Ok(session) => {
                self.backoff.reset();
                self.down = None;
                let session = Arc::new(session);
                self.session = Some(Arc::clone(&session));
                Ok(session)
            }
            Err(failure) => {
                let error = PublishError::from(failure);
                self.down = Some((Instant::now() + self.backoff.next(), error.clone()));
                Err(error)
            }
        }
    }

    pub(super) fn take(&mut self) -> Option<Arc<BrokerSession>> {
        self.session.take()
    }
}

/// The error for a memory or disk alarm of the broker.
pub(super) fn blocked() -> PublishError {
    PublishError::Unavailable("broker_blocked: RabbitMQ takes no messages because of a memory or disk alarm".to_owned())
}
