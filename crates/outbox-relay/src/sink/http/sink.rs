//! The sink: connections, and what becomes of a request.

use std::{
    fmt::Display,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use futures_util::future::join_all;
use hyper::StatusCode;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::spawn_blocking,
    time::timeout_at,
};
use url::Position;

use super::{
    HttpConfig,
    connect::{Connection, Connector},
    request::{Place, request},
    secret,
};
use crate::{
    settings::Secret,
    sink::{KeyOrder, Outcome, Outgoing, PublishError, Receipt, Sink},
};

/// Posts each message to a receiver. See the [module](super).
pub struct Http {
    place: Place,
    connector: Connector,
    secret: Option<Secret>,
    /// Permits for requests.
    requests: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

/// An unusable configuration of an HTTP sink. The URL is not repeated, because its path may be a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpConfigError {
    /// The URL is not valid.
    #[error("sink {0}: the URL does not read as https://host:port/path")]
    Url(String),
    /// A secret is not valid.
    #[error("sink {0}: the secret does not read as whsec_ and base64")]
    Secret(String),
    /// The certificates of authorities cannot be used.
    #[error("sink {0}: {1}")]
    Authorities(String, std::io::Error),
}

impl Http {
    /// Creates a sink of this name. Needs no network: it connects on its first use.
    ///
    /// # Errors
    ///
    /// If the settings cannot be used.
    pub fn new(name: &str, config: &HttpConfig) -> Result<Self, HttpConfigError> {
        let url = config.address().ok_or_else(|| HttpConfigError::Url(name.to_owned()))?;
        if config.secret.as_ref().is_some_and(|secret| secret::keys(secret.text()).is_none()) {
            return Err(HttpConfigError::Secret(name.to_owned()));
        }
        let connector = Connector::new(&url, config.ca_file.as_deref());
        let host = url[Position::BeforeHost..Position::AfterPort].to_owned();
        Ok(Self {
            place: Place { host, path: url.path().to_owned() },
            connector: connector.map_err(|error| HttpConfigError::Authorities(name.to_owned(), error))?,
            secret: config.secret.clone(),
            requests: Semaphore::new(config.connections.max(1)),
            idle: Mutex::default(),
        })
    }

    /// Reads the secrets as they are now, on a thread that may block: their file may have changed.
    async fn keys(&self) -> Result<Vec<Vec<u8>>, PublishError> {
        let Some(secret) = self.secret.clone() else { return Ok(Vec::new()) };
        let keys = spawn_blocking(move || secret::keys(&secret.current())).await.map_err(unavailable)?;
        keys.ok_or_else(|| unavailable("the secret does not read as whsec_ and base64: correct it"))
    }

    async fn deliver(&self, message: &Outgoing, keys: &[Vec<u8>], deadline: Instant) -> Outcome {
        let request = request(message, &self.place, keys, now())?;
        let connection = timeout_at(deadline.into(), self.connection()).await;
        let (mut connection, _permit) =
            connection.unwrap_or_else(|_elapsed| Err(unavailable("no connection in time")))?;
        // Nothing of the message was sent before this call. After it the message may have arrived, unless hyper returns
        // the request.
        match timeout_at(deadline.into(), connection.try_send_request(request)).await {
            Ok(Ok(response)) => {
                // hyper closes the connection if the answer has a body that has not arrived with its head.
                self.idle.lock().push(connection);
                answered(response.status(), message)
            }
            Ok(Err(error)) if error.message().is_some() => Err(unavailable(error.into_error())),
            Ok(Err(error)) => Err(PublishError::Unconfirmed(error.into_error().to_string())),
            Err(_elapsed) => Err(PublishError::Unconfirmed("no answer in time".to_owned())),
        }
    }

    /// Returns an open connection, and the permit to use it.
    async fn connection(&self) -> Result<(Connection, SemaphorePermit<'_>), PublishError> {
        let permit = self.requests.acquire().await.map_err(unavailable)?;
        while let Some(mut connection) = self.take_idle() {
            // The receiver may have closed it while it was idle.
            if connection.ready().await.is_ok() {
                return Ok((connection, permit));
            }
        }
        Ok((self.connector.connect().await.map_err(unavailable)?, permit))
    }

    fn take_idle(&self) -> Option<Connection> {
        self.idle.lock().pop()
    }
}

#[async_trait]
impl Sink for Http {
    /// Requests go out on several connections, so nothing keeps their order.
    fn key_order(&self, _message: &Outgoing) -> KeyOrder {
        KeyOrder::OneInFlight
    }

    async fn publish(&self, batch: &[Outgoing], deadline: Instant) -> Vec<Outcome> {
        let keys = timeout_at(deadline.into(), self.keys()).await;
        let keys = match keys.unwrap_or_else(|_elapsed| Err(unavailable("no time left"))) {
            // A time-out polls once even if it is over.
            Ok(_) if Instant::now() >= deadline => return vec![Err(unavailable("no time left")); batch.len()],
            Ok(keys) => keys,
            Err(error) => return vec![Err(error); batch.len()],
        };
        join_all(batch.iter().map(|message| self.deliver(message, &keys, deadline))).await
    }

    async fn check(&self, deadline: Instant) -> Result<(), PublishError> {
        match timeout_at(deadline.into(), self.connector.connect()).await {
            Ok(connected) => connected.map(drop).map_err(unavailable),
            Err(_elapsed) => Err(unavailable("no connection in time")),
        }
    }

    async fn close(&self) {
        self.idle.lock().clear();
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns the outcome of a message of which nothing was sent.
fn unavailable(error: impl Display) -> PublishError {
    PublishError::Unavailable(error.to_string())
}

/// Returns the outcome for an answer.
fn answered(status: StatusCode, message: &Outgoing) -> Outcome {
    // Not the URL, whose path may be a secret.
    let said = format!("{}: {status}", message.destination.target);
    match status.as_u16() {
        200..=299 => Ok(Receipt::new(&said)),
        // The receiver did not take the message, for no fault of the message: it has moved, or wants fewer requests
        // ("too early", "too many requests"). The sink backs off, and no attempt is spent.
        300..=399 | 425 | 429 => Err(PublishError::Unavailable(said)),
        // Nothing takes messages at this path, or the relay may not post to it. Either may pass.
        404 | 405 | 410 => Err(PublishError::Unroutable { reason: "unroutable", detail: said }),
        401 | 403 => Err(PublishError::Unroutable { reason: "refused", detail: said }),
        413 | 431 => Err(PublishError::Rejected { reason: "too_large", detail: said }),
        code @ 400..=499 if !matches!(code, 408 | 409) => {
            Err(PublishError::Rejected { reason: "refused", detail: said })
        }
        // The receiver may have taken the message before it failed. 5xx includes 503: proxies send it when a connection
        // breaks after the request. 408: a part of the request came too late. 409: an earlier attempt is still in
        // progress.
        _ => Err(PublishError::Unconfirmed(said)),
    }
}
