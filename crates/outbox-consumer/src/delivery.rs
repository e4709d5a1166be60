use std::{
    fmt,
    sync::{Arc, atomic::AtomicUsize},
    time::{Instant, SystemTime},
};

use outbox_core::{Contents, Uuid};
use serde::de::DeserializeOwned;

use crate::Failure;

/// A message as the broker delivered it, or as a worker gets it.
///
/// Its `Debug` shows neither key nor headers nor payload, so that it can be logged.
#[derive(Clone)]
pub struct Delivery {
    /// The message id: the same over retries, redeliveries and replays.
    pub id: Uuid,
    /// The message's contents. Header bytes that are not UTF-8 are replaced.
    pub contents: Contents,
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
    /// How often RabbitMQ got it back without an answer, where the queue counts that. Before RabbitMQ 4.3 an answer
    /// that gives it back counts, too.
    pub(crate) returns: u32,
    /// How often RabbitMQ has delivered it before, where the queue counts that.
    pub(crate) deliveries: u32,
    /// Whether an earlier process may have ended while it worked on it.
    pub(crate) doubt: Doubt,
    /// Whether it is dead because it has ended processes.
    pub(crate) is_guilty: bool,
}

/// Whether a process may have ended while it worked on a message.
#[derive(Debug, Clone, Default)]
pub(crate) enum Doubt {
    /// No process has.
    #[default]
    None,
    /// The broker has delivered it before.
    Redelivered,
    /// It is of a partition that this process got, and this number of new messages there are in doubt.
    First(Arc<AtomicUsize>),
}

impl Delivery {
    /// A first delivery of a message by no broker: for workers, and for tests of a handler.
    #[must_use]
    pub fn new(id: Uuid, contents: Contents) -> Self {
        Self {
            id,
            contents,
            enqueued_at: None,
            attempt: 1,
            received_at: Instant::now(),
            place: "no broker".to_owned(),
            problem: None,
            returns: 0,
            deliveries: 0,
            doubt: Doubt::None,
            is_guilty: false,
        }
    }

    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.contents.header(name)
    }

    /// The payload as JSON. A payload that cannot be read now never can, so the failure is [`Failure::Dead`]. Its text
    /// has the position and not the data, because it goes into logs.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(self.contents.payload.as_deref().unwrap_or_default()).map_err(|error| {
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
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, contents: Contents { topic, event_type, .. }, attempt, place, .. } = self;
        write!(f, "message {id} ({event_type:?}) of {topic}, attempt {attempt}, at {place}")
    }
}

/// Returns the type of event: the one in its usual place, or in the header of the envelope `debezium`.
pub(crate) fn typed(in_place: Option<String>, headers: &[(String, String)]) -> Option<String> {
    in_place.or_else(|| headers.iter().find(|(name, _)| name == "eventType").map(|(_, value)| value.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_in_the_envelope_of_debezium_has_its_type() {
        let headers = [("eventType".to_owned(), "placed".to_owned())];
        assert_eq!(typed(None, &headers).as_deref(), Some("placed"));
        assert_eq!(typed(Some("paid".to_owned()), &headers).as_deref(), Some("paid"));
        assert_eq!(typed(None, &[]), None);
    }

    #[derive(Debug, serde::Deserialize)]
    struct Order {
        #[expect(dead_code, reason = "it is missing")]
        cents: u64,
    }

    #[test]
    fn what_json_says_of_a_payload_says_where_and_quotes_nothing() {
        let text = |payload: &str| {
            let contents = Contents { payload: Some(payload.into()), ..Contents::default() };
            let delivery = Delivery::new(Uuid::nil(), contents);
            delivery.json::<Order>().unwrap_err().to_string()
        };
        assert_eq!(text(r#"{"cents":"4111"}"#), "the payload is JSON of another shape, at line 1 column 15");
        assert_eq!(text(r#"{"pan":"4111"}"#), "missing field `cents` at line 1 column 14");
        assert_eq!(text("{4111"), "key must be a string at line 1 column 2");
    }
}
