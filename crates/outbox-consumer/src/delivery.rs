use std::{
    fmt,
    time::{Instant, SystemTime},
};

use outbox_core::Uuid;
use serde::de::DeserializeOwned;

use crate::Failure;

/// A message as it came from the broker.
///
/// Its `Debug` shows neither key nor headers nor payload, so that it can be logged.
#[derive(Clone)]
pub struct Delivery {
    /// The message id: the same over retries, redeliveries and replays.
    pub id: Uuid,
    /// Kafka's topic or RabbitMQ's routing key.
    pub topic: String,
    /// The message key.
    pub key: Option<Vec<u8>>,
    /// The event type.
    pub event_type: Option<String>,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// The other headers, in the order of the wire. What is not UTF-8 is replaced.
    pub headers: Vec<(String, String)>,
    /// The payload; none is a tombstone.
    pub payload: Option<Vec<u8>>,
    /// When the message was enqueued, by the database's clock.
    pub enqueued_at: Option<SystemTime>,
    /// Which try this is, in this process: 1 is the first.
    pub attempt: u32,
    /// When it came.
    pub(crate) received_at: Instant,
    /// Where it came from, for logs: partition and offset, or the queue.
    pub(crate) place: String,
    /// Why it cannot be a message of an outbox; it is dead at once.
    pub(crate) problem: Option<&'static str>,
}

impl Delivery {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
    }

    /// The payload as JSON. What cannot be read now never can, so the failure is [`Failure::Dead`].
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(self.payload.as_deref().unwrap_or_default()).map_err(Failure::dead)
    }

    /// The headers as a JSON object.
    pub(crate) fn headers_json(&self) -> Option<String> {
        let object: serde_json::Map<_, _> =
            self.headers.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        (!object.is_empty()).then(|| serde_json::Value::Object(object).to_string())
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, topic, event_type, attempt, place, .. } = self;
        write!(f, "message {id} ({event_type:?}) of {topic}, attempt {attempt}, at {place}")
    }
}
