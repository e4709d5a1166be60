//! The connection in use, and the time of the next try to connect.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::session::BrokerSession;
use crate::{settings::RabbitMqConfig, sink::PublishError, state::backoff::Backoff};

/// The shortest and the longest wait between two tries to connect.
const WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The time that connecting may take.
const CONNECT: Duration = Duration::from_secs(5);

/// Holds one connection, and replaces it when it is unusable.
pub(super) struct Link {
    name: String,
    config: RabbitMqConfig,
    session: Option<Arc<BrokerSession>>,
    /// Most channels of the next connection.
    most: usize,
    backoff: Backoff,
    down: Option<(Instant, PublishError)>,
}

impl Link {
    pub(super) fn new(name: &str, config: RabbitMqConfig) -> Self {
        let backoff = Backoff::new(WAIT.0, WAIT.1);
        Self { name: name.to_owned(), config, session: None, most: usize::MAX, backoff, down: None }
    }

    /// Returns a connection that takes messages.
    pub(super) async fn session(&mut self, deadline: Instant) -> Result<Arc<BrokerSession>, PublishError> {
        match &self.session {
            Some(session) if session.is_blocked() => return Err(blocked()),
            Some(session) if session.is_usable() => return Ok(Arc::clone(session)),
            // Without the limit, because it may have been raised, if another reason ended the connection.
            _ => {
                let ended = self.session.take();
                self.most = ended.and_then(|ended| ended.channels().limit()).map_or(self.most, |limit| limit.max(1));
            }
        }
        match &self.down {
            Some((until, error)) if Instant::now() < *until => Err(error.clone()),
            _ => self.connect(deadline).await,
        }
    }

    async fn connect(&mut self, deadline: Instant) -> Result<Arc<BrokerSession>, PublishError> {
        let deadline = deadline.min(Instant::now() + CONNECT);
        match BrokerSession::connect_within(&self.config, &self.name, self.most, deadline).await {
            Ok(session) => {
                self.backoff.reset();
                (self.down, self.most) = (None, usize::MAX);
                let open = session.channels().count();
                let configured = self.config.channels;
                if open < configured {
                    tracing::warn!(
                        sink = self.name,
                        open,
                        configured,
                        "RabbitMQ allows fewer channels than configured"
                    );
                }
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
