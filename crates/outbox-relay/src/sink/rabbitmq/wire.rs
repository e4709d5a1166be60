//! A message on the wire.

use std::{collections::BTreeMap, time::Duration};

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldArray, FieldTable, LongString, ShortString},
};
use outbox_core::TOPIC_HEADER;

use crate::sink::{Destination, Outgoing, PublishError};

/// The header that carries the message key.
pub(super) const KEY: &str = "x-message-key";
/// The header that distinguishes a tombstone from an empty payload.
pub(super) const TOMBSTONE: &str = "x-tombstone";

/// The delivery mode of messages that survive a restart.
const PERSISTENT: u8 = 2;
/// Bytes that a frame needs beside the table of headers: three short texts of up to 255 bytes, and some numbers.
const BESIDE_HEADERS: usize = 1024;

/// The arguments of `basic.publish` besides the payload.
#[derive(Debug, Clone)]
pub(super) struct Publish {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
    /// Bytes of the table of headers on the wire.
    pub(super) headers: usize,
}

impl Publish {
    /// Refuses properties that are larger than the frame in which they travel: the broker would end the connection for
    /// all.
    pub(super) fn fits(&self, frame_max: usize) -> Result<(), PublishError> {
        let most = frame_max.saturating_sub(BESIDE_HEADERS);
        if self.headers <= most {
            return Ok(());
        }
        let detail =
            format!("headers and key take {} bytes; this connection carries {most}: see frame_max", self.headers);
        Err(PublishError::Rejected { reason: "too_large", detail })
    }
}

/// Returns how the message is published, or why it never can be.
pub(super) fn publish(message: &Outgoing) -> Result<Publish, PublishError> {
    let Destination { target, routing_key, .. } = &*message.destination;
    let (table, headers) = headers(message)?;
    let properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(short("message id", &message.message_id.to_string())?)
        .with_timestamp(seconds(message.created_at_micros))
        .with_headers(table);
    Ok(Publish {
        exchange: short("exchange", target)?,
        routing_key: short("routing key", routing_key)?,
        properties: described(message, properties)?,
        headers,
    })
}

fn described(message: &Outgoing, mut properties: BasicProperties) -> Result<BasicProperties, PublishError> {
    if let Some(content_type) = &message.contents.content_type {
        properties = properties.with_content_type(short("content type", content_type)?);
    }
    if let Some(event_type) = &message.contents.event_type {
        properties = properties.with_type(short("event type", event_type)?);
    }
    Ok(properties)
}

/// Returns the message's headers, and their bytes on the wire. AMQP has a table where the message has a list. A name
/// with several values gets a list of its values, in their order.
fn headers(message: &Outgoing) -> Result<(FieldTable, usize), PublishError> {
    let mut table: BTreeMap<ShortString, Vec<AMQPValue>> = BTreeMap::new();
    for (name, value) in &message.contents.headers {
        table.entry(short("header name", name)?).or_default().push(text(value.as_bytes()));
    }
    let mut table: BTreeMap<_, _> = table.into_iter().map(|(name, values)| (name, one_or_list(values))).collect();
    table.insert(short("header name", TOPIC_HEADER)?, text(message.contents.topic.as_bytes()));
    if let Some(key) = &message.contents.key {
        table.insert(short("header name", KEY)?, text(key));
    }
    if message.contents.payload.is_none() {
        table.insert(short("header name", TOMBSTONE)?, AMQPValue::Boolean(true));
    }
    let size = table.iter().map(|(name, value)| 1 + name.as_str().len() + bytes(value)).sum();
    Ok((table.into(), size))
}

fn one_or_list(mut values: Vec<AMQPValue>) -> AMQPValue {
    match values.pop() {
        Some(only) if values.is_empty() => only,
        last => AMQPValue::FieldArray(FieldArray::from(values.into_iter().chain(last).collect::<Vec<_>>())),
    }
}

/// Returns the bytes of a value on the wire: the letter of its type, a length for texts and lists, and the contents.
fn bytes(value: &AMQPValue) -> usize {
    match value {
        AMQPValue::LongString(text) => 5 + text.as_bytes().len(),
        AMQPValue::FieldArray(values) => 5 + values.as_slice().iter().map(bytes).sum::<usize>(),
        _ => 2,
    }
}

fn text(bytes: &[u8]) -> AMQPValue {
    AMQPValue::LongString(LongString::from(bytes))
}

/// Makes a short string. lapin panics on more than 255 bytes; this does not.
fn short(what: &str, text: &str) -> Result<ShortString, PublishError> {
    ShortString::try_new(text).map_err(|_too_long| PublishError::Rejected {
        reason: "invalid",
        detail: format!("the {what} has {} bytes; RabbitMQ carries 255", text.len()),
    })
}

fn seconds(micros: i64) -> u64 {
    Duration::from_micros(micros.try_into().unwrap_or(0)).as_secs()
}

#[cfg(test)]
mod properties {
    use proptest::{collection::vec, prelude::*};
    use testkit::strategies::text as any_text;

    use super::*;
    use crate::properties::outgoing;

    fn own(name: &str) -> bool {
        !matches!(name, KEY | TOMBSTONE | TOPIC_HEADER)
    }

    proptest! {
        /// The consumer's property of the same name begins with this table.
        #[test]
        fn what_the_relay_writes_is_read_as_it_was(message in outgoing()) {
            let Destination { target, routing_key, .. } = &*message.destination;
            let names = message.contents.headers.iter().map(|(name, _)| name);
            let described = [&message.contents.event_type, &message.contents.content_type].into_iter().flatten();
            let is_long = names.chain(described).chain([target, routing_key]).any(|text| text.len() > 255);
            let Ok(Publish { exchange, routing_key: written_key, properties, .. }) = publish(&message) else {
                prop_assert!(is_long, "only what is too long is rejected");
                return Ok(());
            };
            prop_assert!(!is_long);
            prop_assert_eq!((exchange.as_str(), written_key.as_str()), (target.as_str(), routing_key.as_str()));
            let text_of = |property: &Option<ShortString>| property.as_ref().map(ToString::to_string);
            prop_assert_eq!(text_of(properties.message_id()), Some(message.message_id.to_string()));
            prop_assert_eq!(text_of(properties.kind()), message.contents.event_type.clone());
            prop_assert_eq!(text_of(properties.content_type()), message.contents.content_type.clone());

            let table = properties.headers().clone().unwrap_or_default();
            let mut table = table.inner().clone();
            prop_assert_eq!(table.remove(TOPIC_HEADER), Some(text(message.contents.topic.as_bytes())));
            if let Some(key) = &message.contents.key {
                prop_assert_eq!(table.remove(KEY), Some(text(key)));
            }
            if message.contents.payload.is_none() {
                prop_assert_eq!(table.remove(TOMBSTONE), Some(AMQPValue::Boolean(true)));
            }
            for (name, value) in message.contents.headers.iter().filter(|(name, _)| own(name)) {
                prop_assert_eq!(table.remove(name.as_str()), Some(text(value.as_bytes())));
            }
            prop_assert!(table.keys().all(|name| !own(name.as_str())), "what nobody has written");
        }

        /// A row holds each name once; a message of an embedding program may not.
        #[test]
        fn the_values_of_one_name_keep_their_order(
            mut message in outgoing(), headers in vec((prop::sample::select(vec!["a", "b"]), any_text()), 0..6),
        ) {
            let owned = headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            message.contents.headers = owned.collect();
            if let Ok(written) = publish(&message) {
                let table = written.properties.headers().clone().unwrap_or_default();
                for wanted in ["a", "b"] {
                    let values: Vec<AMQPValue> = headers
                        .iter()
                        .filter(|(name, _)| *name == wanted)
                        .map(|(_, value)| text(value.as_bytes()))
                        .collect();
                    let read = match table.inner().get(wanted) {
                        Some(AMQPValue::FieldArray(list)) => list.as_slice().to_vec(),
                        other => other.cloned().into_iter().collect(),
                    };
                    prop_assert_eq!(read, values);
                }
            }
        }
    }
}
