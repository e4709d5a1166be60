//! A custom sink in one file: it posts each message to a URL. README.md describes the requests.
//!
//! Read it in this order. [`Webhook::publish`](Sink::publish) returns one outcome per message. `deliver` separates
//! "surely did not arrive" from "may have arrived". `answered` maps an answer to an outcome.

use std::{
    fmt::Display,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use futures_util::future::join_all;
use hyper::{
    Request, StatusCode, Uri,
    client::conn::http1::{self, SendRequest},
    header::{CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use outbox_relay::sink::{KeyOrder, Outcome, Outgoing, PublishError, Receipt, Sink};
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    sync::{Semaphore, SemaphorePermit},
    time::timeout_at,
};

/// Connections to the receiver, each with one request at a time.
pub const CONNECTIONS: usize = 16;

type Connection = SendRequest<String>;

/// Posts each message to a URL.
pub struct Webhook {
    /// Host and port.
    address: String,
    /// The part of a request's path before the topic.
    path: String,
    places: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

impl Webhook {
    /// Creates a sink that posts to this URL, followed by `/` and the route's target. Connects on its first use.
    pub fn new(url: &str) -> Result<Self> {
        let url: Uri = url.parse().context("the URL cannot be read")?;
        let plain = url.scheme_str() == Some("http");
        let authority = url.authority().filter(|authority| plain && !authority.as_str().contains('@'));
        let authority = authority.context("the URL must be http://host:port/path, without a password")?;
        let port = if authority.port().is_some() { "" } else { ":80" };
        let (address, path) = (format!("{authority}{port}"), url.path().trim_end_matches('/').to_owned());
        Ok(Self { address, path, places: Semaphore::new(CONNECTIONS), idle: Mutex::default() })
    }

    async fn deliver(&self, message: &Outgoing, deadline: Instant) -> Outcome {
        let request = self.request(message)?;
        let connection = timeout_at(deadline.into(), self.connection()).await;
        let (mut connection, _place) =
            connection.unwrap_or_else(|_elapsed| Err(unavailable("no connection in time")))?;
        // Nothing of the message was sent before this call. After it the message may have arrived, unless hyper returns
        // the request.
        match timeout_at(deadline.into(), connection.try_send_request(request)).await {
            Ok(Ok(response)) => {
                self.idle().push(connection);
                answered(response.status(), message)
            }
            Ok(Err(error)) if error.message().is_some() => Err(unavailable(error.into_error())),
            Ok(Err(error)) => Err(PublishError::Unconfirmed(error.into_error().to_string())),
            Err(_elapsed) => Err(PublishError::Unconfirmed("no answer in time".to_owned())),
        }
    }

    fn request(&self, message: &Outgoing) -> Result<Request<String>, PublishError> {
        let request = Request::post(format!("{}/{}", self.path, message.destination.target))
            .header(HOST, &self.address)
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", message.message_id.to_string());
        let invalid = |_not_http| {
            let detail = "the target cannot stand in a URL".to_owned();
            PublishError::Rejected { reason: "invalid", detail }
        };
        request.body(body(message)).map_err(invalid)
    }

    /// Returns an open connection, and its permit.
    async fn connection(&self) -> Result<(Connection, SemaphorePermit<'_>), PublishError> {
        let place = self.places.acquire().await.map_err(unavailable)?;
        while let Some(mut connection) = self.take_idle() {
            // The receiver may have closed it while it was idle.
            if connection.ready().await.is_ok() {
                return Ok((connection, place));
            }
        }
        Ok((self.connect().await?, place))
    }

    async fn connect(&self) -> Result<Connection, PublishError> {
        let stream = TcpStream::connect(&self.address).await.map_err(unavailable)?;
        stream.set_nodelay(true).map_err(unavailable)?;
        let (connection, driver) = http1::handshake::<_, String>(TokioIo::new(stream)).await.map_err(unavailable)?;
        // It ends with the connection. The request in flight gets its error.
        tokio::spawn(driver);
        Ok(connection)
    }

    fn take_idle(&self) -> Option<Connection> {
        self.idle().pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Sink for Webhook {
    /// Requests go out on several connections, so nothing keeps their order. The relay waits for each answer before it
    /// hands over the next message of a key.
    fn key_order(&self, _message: &Outgoing) -> KeyOrder {
        KeyOrder::OneInFlight
    }

    async fn publish(&self, batch: &[Outgoing], deadline: Instant) -> Vec<Outcome> {
        if Instant::now() >= deadline {
            return vec![Err(unavailable("no time left")); batch.len()];
        }
        join_all(batch.iter().map(|message| self.deliver(message, deadline))).await
    }

    async fn check(&self, deadline: Instant) -> Result<(), PublishError> {
        match timeout_at(deadline.into(), self.connect()).await {
            Ok(connected) => connected.map(drop),
            Err(_elapsed) => Err(unavailable("no connection in time")),
        }
    }

    async fn close(&self) {
        self.idle().clear();
    }
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
        code @ 400..=499 if !matches!(code, 408 | 409) => {
            Err(PublishError::Rejected { reason: "refused", detail: said })
        }
        // The receiver may have taken the message before it failed. 5xx includes 503: proxies send it when a connection
        // breaks after the request. 408: a part of the request came too late. 409: an earlier attempt is still in
        // progress.
        _ => Err(PublishError::Unconfirmed(said)),
    }
}

/// Returns the message as JSON: its headers and key may hold bytes that HTTP headers cannot.
fn body(message: &Outgoing) -> String {
    json!({
        "id": message.message_id.to_string(),
        "topic": &*message.contents.topic,
        "key": message.contents.key.as_deref().map(bytes),
        "type": message.contents.event_type,
        "content_type": message.contents.content_type,
        "headers": message.contents.headers,
        "created_at_micros": message.created_at_micros,
        "payload": message.contents.payload.as_deref().map(bytes),
    })
    .to_string()
}

/// Returns bytes as text if they are UTF-8, otherwise as base64.
fn bytes(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => json!({ "base64": BASE64.encode(bytes) }),
    }
}
