//! A message on the wire.

use std::time::{SystemTime, UNIX_EPOCH};

use outbox_core::TOPIC_HEADER;
use rdkafka::{
    message::{Header, OwnedHeaders},
    producer::BaseRecord,
};

use crate::sink::{Outgoing, PublishError};

/// Returns the record of a message: its key, its payload (null for a tombstone), its enqueue time, and the headers
/// `id`, `type`, `content-type` and `outbox-topic` before its own. The only copy goes into librdkafka's own memory.
///
/// The time is the relay's if that is earlier. Kafka refuses times that lie an hour ahead, so a database with a wrong
/// clock would have all of its messages rejected.
pub(super) fn record(message: &Outgoing, opaque: usize) -> BaseRecord<'_, [u8], [u8], usize> {
    let mut record = BaseRecord::with_opaque_to(message.destination.target.as_str(), opaque)
        .timestamp(message.created_at_micros.div_euclid(1000).min(now_millis()))
        .headers(headers(message));
    record.key = message.contents.key.as_deref();
    record.payload = message.contents.payload.as_deref();
    record
}

fn now_millis() -> i64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX)
}

fn headers(message: &Outgoing) -> OwnedHeaders {
    let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
    let id = message.message_id.hyphenated().encode_lower(&mut text);
    let known = [
        ("id", Some(&*id)),
        ("type", message.contents.event_type.as_deref()),
        ("content-type", message.contents.content_type.as_deref()),
        (TOPIC_HEADER, Some(message.contents.topic.as_str())),
    ];
    let known = known.into_iter().filter_map(|(key, value)| Some((key, value?)));
    let own = message.contents.headers.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    known
        .chain(own)
        .fold(OwnedHeaders::new_with_capacity(message.contents.headers.len() + 4), |headers, (key, value)| {
            headers.insert(Header { key, value: Some(value) })
        })
}

/// Checks that Kafka allows the topic's name. librdkafka would wait for a topic of any other name to appear.
pub(super) fn check_topic(topic: &str) -> Result<(), PublishError> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if (1..=249).contains(&topic.len()) && topic.bytes().all(legal) && topic != "." && topic != ".." {
        return Ok(());
    }
    let detail = "not a name for a Kafka topic: 1 to 249 letters, digits, `.`, `_` and `-`".to_owned();
    Err(PublishError::Rejected { reason: "invalid", detail })
}

#[cfg(test)]
mod tests {
    use super::check_topic;

    #[test]
    fn only_names_that_kafka_allows_pass() {
        for name in ["orders", "a.b_c-D9", &"x".repeat(249)] {
            assert!(check_topic(name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", "a b", "ä", "a/b", "a\0b", &"x".repeat(250)] {
            assert!(check_topic(name).is_err(), "{name}");
        }
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;
    use rdkafka::message::Headers as _;

    use super::{TOPIC_HEADER, now_millis, record};
    use crate::properties::outgoing;

    proptest! {
        /// The consumer's property of the same name begins with these headers. rdkafka shows a name only up to a NUL,
        /// which no service can enqueue.
        #[test]
        fn what_the_relay_writes_is_read_as_it_was(message in outgoing()) {
            let written = record(&message, 7);
            prop_assert_eq!((written.key, written.payload), (message.contents.key.as_deref(), message.contents.payload.as_deref()));
            let time = written.timestamp.unwrap_or_default();
            let enqueued = message.created_at_micros.div_euclid(1000);
            prop_assert!(time == enqueued || (time < enqueued && time <= now_millis()));
            prop_assert_eq!((written.partition, written.delivery_opaque), (None, 7));

            let known = [
                ("id", Some(message.message_id.to_string())),
                ("type", message.contents.event_type.clone()),
                ("content-type", message.contents.content_type.clone()),
                (TOPIC_HEADER, Some(message.contents.topic.clone())),
            ];
            let known = known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
            let seen = |name: &str| name.split('\0').next().unwrap_or_default().to_owned();
            let own = message.contents.headers.iter().map(|(name, value)| (seen(name), value.clone()));
            let headers = written.headers.unwrap_or_default();
            let read = headers.iter().map(|header| {
                let value = header.value.unwrap_or_default().to_vec();
                String::from_utf8(value).map(|value| (header.key.to_owned(), value))
            });
            prop_assert_eq!(read.collect::<Result<Vec<_>, _>>()?, known.chain(own).collect::<Vec<_>>());
        }
    }
}
