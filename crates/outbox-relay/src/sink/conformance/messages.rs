//! Messages for the suite, and publishing as the relay does it.

use std::{
    collections::HashSet,
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::{Contents, key_hash};
use tokio::time::sleep;
use uuid::Uuid;

use super::{Arrived, ConformanceError, DEADLINE};
use crate::sink::{Destination, KeyOrder, Outcome, Outgoing, Sink};

/// The enqueue time of all messages of the suite: 14 November 2023, with a fraction that Kafka and RabbitMQ cut.
const CREATED_AT_MICROS: i64 = 1_700_000_000_123_456;

/// The pause before an unconfirmed message goes out again.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// A message under construction.
#[derive(Debug, Clone)]
pub struct Draft(Outgoing);

impl Draft {
    /// Starts with neither key, type, media type nor headers.
    #[must_use]
    pub fn new(destination: &Arc<Destination>, payload: impl Into<Vec<u8>>) -> Self {
        Self(Outgoing {
            message_id: Uuid::now_v7(),
            key_hash: 0,
            contents: Contents {
                topic: "conformance".to_owned(),
                payload: Some(payload.into()),
                ..Contents::default()
            },
            created_at_micros: CREATED_AT_MICROS,
            destination: Arc::clone(destination),
            progress: None,
        })
    }

    /// Sets the key.
    #[must_use]
    pub fn key(mut self, key: &[u8]) -> Self {
        self.0.contents.key = Some(key.to_vec());
        self.0.key_hash = key_hash(&self.0.contents.topic, Some(key));
        self
    }

    /// Removes the payload.
    #[must_use]
    pub fn tombstone(mut self) -> Self {
        self.0.contents.payload = None;
        self
    }

    /// Sets the kind of event and the media type.
    #[must_use]
    pub fn described(mut self, event_type: &str, content_type: &str) -> Self {
        self.0.contents.event_type = Some(event_type.to_owned());
        self.0.contents.content_type = Some(content_type.to_owned());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.0.contents.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the message.
    #[must_use]
    pub fn build(self) -> Outgoing {
        self.0
    }
}

/// Publishes messages as the relay does. If the sink does not keep a key's order itself, no batch has a key twice. The
/// next message of a key then waits for the one before. The outcomes are in the order of the messages.
pub async fn publish(sink: &dyn Sink, messages: &[Outgoing]) -> Vec<Outcome> {
    let mut outcomes = Vec::with_capacity(messages.len());
    let mut rest = messages;
    while !rest.is_empty() {
        let (batch, later) = rest.split_at(together(|message| sink.key_order(message), rest));
        outcomes.extend(sink.publish(batch, Instant::now() + DEADLINE).await);
        rest = later;
    }
    outcomes
}

/// Publishes one message after the other, each again until it is confirmed.
///
/// # Errors
///
/// If a message is not confirmed within this time; the error has its last outcome.
pub async fn publish_until_sent(
    sink: &dyn Sink,
    messages: &[Outgoing],
    within: Duration,
) -> Result<(), ConformanceError> {
    for message in messages {
        let end = Instant::now() + within;
        loop {
            match sink.publish(slice::from_ref(message), Instant::now() + DEADLINE).await.pop() {
                Some(Ok(_)) => break,
                other if Instant::now() > end => {
                    return Err(ConformanceError::new(format!("not confirmed within {within:?}: {other:?}")));
                }
                _ => sleep(PAUSE).await,
            }
        }
    }
    Ok(())
}

/// Returns how many of these messages, from the first on, a sink may get together.
fn together(order: impl Fn(&Outgoing) -> KeyOrder, messages: &[Outgoing]) -> usize {
    let mut keys = HashSet::new();
    let is_second = |message: &Outgoing| {
        message.key_hash != 0 && !keys.insert(message.key_hash) && order(message) != KeyOrder::Pipelined
    };
    messages.iter().position(is_second).unwrap_or(messages.len())
}

/// Returns the message as it must arrive, for comparison.
pub(super) fn expected(message: &Outgoing) -> Arrived {
    comparable(Arrived {
        message_id: message.message_id,
        key: message.contents.key.clone(),
        event_type: message.contents.event_type.clone(),
        content_type: message.contents.content_type.clone(),
        headers: message.contents.headers.clone(),
        payload: message.contents.payload.clone(),
    })
}

/// Sorts headers by name; the values of one name keep their order.
pub(super) fn comparable(mut arrived: Arrived) -> Arrived {
    arrived.headers.sort_by(|a, b| a.0.cmp(&b.0));
    arrived
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Draft, together};
    use crate::sink::{Destination, KeyOrder};

    #[test]
    fn no_key_is_twice_in_a_batch_of_a_sink_that_does_not_keep_order() {
        let destination =
            Arc::new(Destination { sink: String::new(), target: String::new(), routing_key: String::new() });
        let messages = [0, 1, 2, 1, 1, 0].map(|key| Draft::new(&destination, "").key(&[key]).build());
        let lengths = |order| [0, 3, 4].map(|from| together(|_| order, &messages[from..]));
        assert_eq!(lengths(KeyOrder::OneInFlight), [3, 1, 2]);
        assert_eq!(lengths(KeyOrder::Pipelined), [6, 3, 2]);
    }
}
