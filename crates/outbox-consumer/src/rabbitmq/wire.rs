//! A message of RabbitMQ as a delivery.

use std::time::{Duration, Instant, SystemTime};

use lapin::types::{AMQPValue, FieldTable, ShortString};
use outbox_core::Uuid;

use crate::Delivery;

/// Headers that the relay writes: the message key, and what tells a tombstone from an empty payload.
const KEY: &str = "x-message-key";
const TOMBSTONE: &str = "x-tombstone";

pub(super) fn delivery(message: lapin::message::Delivery, queue: &str) -> Delivery {
    let properties = &message.properties;
    let id = properties.message_id().as_ref().and_then(|id| Uuid::try_parse(id.as_str()).ok());
    let none = FieldTable::default();
    let table = properties.headers().as_ref().unwrap_or(&none).inner();
    let tombstone = matches!(table.get(TOMBSTONE), Some(AMQPValue::Boolean(true)));
    let text = |value: &Option<ShortString>| value.as_ref().map(ToString::to_string);
    let seconds = properties.timestamp().map(Duration::from_secs);
    Delivery {
        id: id.unwrap_or_else(Uuid::now_v7),
        topic: message.routing_key.to_string(),
        key: table.get(KEY).and_then(AMQPValue::as_long_string).map(|key| key.as_bytes().to_vec()),
        event_type: text(properties.kind()),
        content_type: text(properties.content_type()),
        headers: table.iter().flat_map(|(name, value)| header(name.as_str(), value)).collect(),
        payload: (!tombstone).then_some(message.data),
        enqueued_at: seconds.and_then(|time| SystemTime::UNIX_EPOCH.checked_add(time)),
        attempt: 1,
        received_at: Instant::now(),
        place: queue.to_owned(),
        problem: id.is_none().then_some("the message has no property `message_id` that is a UUID"),
    }
}

/// A header of the message, once for each of its values; what RabbitMQ adds (`x-death`) is none.
fn header(name: &str, value: &AMQPValue) -> Vec<(String, String)> {
    if matches!(name, KEY | TOMBSTONE) {
        return Vec::new();
    }
    let one = |value: &AMQPValue| match value {
        AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        AMQPValue::ShortString(text) => Some(text.to_string()),
        AMQPValue::Boolean(value) => Some(value.to_string()),
        AMQPValue::LongLongInt(value) => Some(value.to_string()),
        AMQPValue::LongInt(value) => Some(value.to_string()),
        _ => None,
    };
    let values = match value {
        AMQPValue::FieldArray(values) => values.as_slice().iter().filter_map(one).collect(),
        value => Vec::from_iter(one(value)),
    };
    values.into_iter().map(|value| (name.to_owned(), value)).collect()
}
