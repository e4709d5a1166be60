use std::{
    fmt,
    time::{Instant, SystemTime},
};

use outbox_core::Uuid;
use serde::de::DeserializeOwned;

use crate::Failure;

/// A message as the broker delivered it, or as a worker gets it.
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
    /// The other headers, in the order of the wire. Bytes that are not UTF-8 are replaced.
    pub headers: Vec<(String, String)>,
    /// The payload; `None` for a tombstone.
    pub payload: Option<Vec<u8>>,
    /// When the message was enqueued, by the database's clock.
    pub enqueued_at: Option<SystemTime>,
    /// The number of this attempt in this process, from 1 on.
    pub attempt: u32,
    /// Its time of arrival.
    pub(crate) received_at: Instant,
    /// Where it came from, for logs: partition and offset, or the queue.
    pub(crate) place: String,
    /// Why it cannot be a message of an outbox; it is dead at once.
    pub(crate) problem: Option<&'static str>,
}

impl Delivery {
    /// A message that comes from no broker: for workers, and for tests of a handler. The other fields are empty, and to
    /// be set; it is the first attempt.
    #[must_use]
    pub fn new(id: Uuid, topic: impl Into<String>, payload: Option<Vec<u8>>) -> Self {
        Self {
            id,
            topic: topic.into(),
            key: None,
            event_type: None,
            content_type: None,
            headers: Vec::new(),
            payload,
            enqueued_at: None,
            attempt: 1,
            received_at: Instant::now(),
            place: "no broker".to_owned(),
            problem: None,
        }
    }

    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
    }

    /// The payload as JSON. A payload that cannot be read now never can, so the failure is [`Failure::Dead`]. Its text
    /// has the position and not the data, because it goes into logs.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(self.payload.as_deref().unwrap_or_default()).map_err(|error| {
            // The text about a missing field has its name from the type; other texts about data quote the data.
            if !error.is_data() || error.to_string().starts_with("missing field") {
                return Failure::dead(error);
            }
            Failure::dead(format!(
                "the payload is JSON of another shape, at line {} column {}",
                error.line(),
                error.column()
            ))
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Order {
        #[expect(dead_code, reason = "it is missing")]
        cents: u64,
    }

    #[test]
    fn what_json_says_of_a_payload_says_where_and_quotes_nothing() {
        let text = |payload: &str| {
            let delivery = Delivery::new(Uuid::nil(), "orders", Some(payload.into()));
            delivery.json::<Order>().unwrap_err().to_string()
        };
        assert_eq!(text(r#"{"cents":"4111"}"#), "the payload is JSON of another shape, at line 1 column 15");
        assert_eq!(text(r#"{"pan":"4111"}"#), "missing field `cents` at line 1 column 14");
        assert_eq!(text("{4111"), "key must be a string at line 1 column 2");
    }
}
