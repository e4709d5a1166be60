//! The sink: connections, and what becomes of a request.

use std::{
    fmt::Display,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use hyper::{
    StatusCode,
    body::{Body as _, Incoming},
};
use parking_lot::Mutex;
use tokio::{
    task::spawn_blocking,
    time::{timeout, timeout_at},
};
use url::Position;

use super::{
    HttpConfig,
    connect::{Connection, Connector},
    request::{ReceiverUrl, request},
    secret,
};
use crate::{
    driver_errors::FORBIDDEN,
    settings::Secret,
    sink::{KeyOrder, Outcome, Outgoing, PublishError, Receipt, Sink},
};

/// The time for which a connection is kept for the next request. Servers close theirs after five seconds or more, and a
/// NAT forgets quiet ones: a request on such a connection may or may not arrive.
const KEPT: Duration = Duration::from_secs(3);
/// Most bytes of an answer's body that are read so that its connection can be used again, and the time for that.
const BODY: usize = 64 * 1024;
const BODY_WITHIN: Duration = Duration::from_secs(1);
/// The receiver is down if it has taken nothing for this time. Before, a proxy's answer that nobody is behind it is
/// about this message alone: it may be the one that ends the receiver.
const OUTAGE: Duration = Duration::from_secs(10);
/// The time in which a kept connection must be ready.
const READY_WITHIN: Duration = Duration::from_millis(100);

/// Posts each message to a receiver. See the [module](super).
pub struct Http {
    place: ReceiverUrl,
    connector: Connector,
    secret: Option<Secret>,
    idle: Arc<IdleConnections>,
    /// When the receiver last took a message.
    taken_at: Mutex<Option<Instant>>,
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
            place: ReceiverUrl { host, path: url.path().to_owned() },
            connector: connector.map_err(|error| HttpConfigError::Authorities(name.to_owned(), error))?,
            secret: config.secret.clone(),
            idle: Arc::new(IdleConnections { most: config.connections.max(1), connections: Mutex::default() }),
            taken_at: Mutex::default(),
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
        let mut connection = connection.unwrap_or_else(|_elapsed| Err(unavailable("no connection in time")))?;
        // Nothing of the message was sent before this call. After it the message may have arrived, unless hyper returns
        // the request.
        match timeout_at(deadline.into(), connection.try_send_request(request)).await {
            Ok(Ok(response)) => {
                let (head, body) = response.into_parts();
                if body.is_end_stream() {
                    self.idle.put(connection);
                } else {
                    tokio::spawn(keep(Arc::clone(&self.idle), connection, body));
                }
                self.answered(head.status, message)
            }
            Ok(Err(error)) if error.message().is_some() => Err(unavailable(error.into_error())),
            Ok(Err(error)) => Err(PublishError::Unconfirmed(error.into_error().to_string())),
            Err(_elapsed) => Err(PublishError::Unconfirmed("no answer in time".to_owned())),
        }
    }

    /// Returns the outcome for an answer.
    fn answered(&self, status: StatusCode, message: &Outgoing) -> Outcome {
        let said = status.to_string();
        match status.as_u16() {
            200..=299 => {
                *self.taken_at.lock() = Some(Instant::now());
                // Not the URL, whose path may be a secret.
                Ok(Receipt::new(&format!("{}: {said}", message.destination.target)))
            }
            // The receiver wants fewer requests ("too early", "too many requests"). The sink backs off, and no attempt is
            // spent.
            425 | 429 => Err(PublishError::Unavailable(said)),
            // A proxy may say so of a request that has arrived: then the message comes twice, as after any doubt.
            502 | 503 if self.is_down() => Err(PublishError::Unavailable(said)),
            // Nothing takes messages at this path, or the relay may not post to it. Either may pass.
            300..=399 | 404 | 405 | 410 => Err(PublishError::Unroutable { reason: "unroutable", detail: said }),
            401 | 403 => {
                let detail = format!("the relay {FORBIDDEN} here: {said}");
                Err(PublishError::Unroutable { reason: "refused", detail })
            }
            413 | 431 => Err(PublishError::Rejected { reason: "too_large", detail: said }),
            code @ 400..=499 if !matches!(code, 408 | 409) => {
                Err(PublishError::Rejected { reason: "refused", detail: said })
            }
            // The receiver may have taken the message before it failed. 408: a part of the request came too late. 409: an
            // earlier attempt is still in progress.
            _ => Err(PublishError::Unconfirmed(said)),
        }
    }

    fn is_down(&self) -> bool {
        self.taken_at.lock().is_none_or(|at| at.elapsed() >= OUTAGE)
    }

    /// Returns an open connection, that of the last request first.
    async fn connection(&self) -> Result<Connection, PublishError> {
        while let Some(mut connection) = self.idle.take() {
            // The receiver may have closed it, or answered before it read the request.
            if timeout(READY_WITHIN, connection.ready()).await.is_ok_and(|ready| ready.is_ok()) {
                return Ok(connection);
            }
        }
        self.connector.connect().await.map_err(unavailable)
    }
}

/// Connections without a request, each since when.
struct IdleConnections {
    most: usize,
    connections: Mutex<Vec<(Connection, Instant)>>,
}

impl IdleConnections {
    fn take(&self) -> Option<Connection> {
        let connections = &mut *self.connections.lock();
        connections.retain(|(connection, since)| since.elapsed() < KEPT && !connection.is_closed());
        connections.pop().map(|(connection, _)| connection)
    }

    fn put(&self, connection: Connection) {
        let connections = &mut *self.connections.lock();
        if connections.len() < self.most {
            connections.push((connection, Instant::now()));
        }
    }
}

/// Reads the rest of an answer, and keeps its connection for the next request.
async fn keep(idle: Arc<IdleConnections>, connection: Connection, mut body: Incoming) {
    let read = async {
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            bytes += frame.ok()?.data_ref().map_or(0, Bytes::len);
            if bytes > BODY {
                return None;
            }
        }
        Some(())
    };
    if timeout(BODY_WITHIN, read).await.is_ok_and(|read| read.is_some()) {
        idle.put(connection);
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
        let deliveries: Vec<_> = batch.iter().map(|message| self.deliver(message, &keys, deadline)).collect();
        stream::iter(deliveries).buffered(self.idle.most).collect().await
    }

    async fn check(&self, deadline: Instant) -> Result<(), PublishError> {
        match timeout_at(deadline.into(), self.connector.connect()).await {
            Ok(connected) => connected.map(drop).map_err(unavailable),
            Err(_elapsed) => Err(unavailable("no connection in time")),
        }
    }

    async fn close(&self) {
        self.idle.connections.lock().clear();
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns the outcome of a message of which nothing was sent.
fn unavailable(error: impl Display) -> PublishError {
    PublishError::Unavailable(error.to_string())
}
