//! A message of RabbitMQ as a delivery.

use std::time::{Duration, SystemTime};

use lapin::types::{AMQPValue, FieldTable, ShortString};
use outbox_core::{Contents, TOPIC_HEADER, Uuid};

use crate::{
    Delivery,
    delivery::{Doubt, typed},
};

/// Headers that the relay writes: the message key, and the mark that distinguishes a tombstone from an empty payload.
const KEY: &str = "x-message-key";
const TOMBSTONE: &str = "x-tombstone";
/// Headers of a quorum queue: how often it got the message back without an answer, and (from RabbitMQ 4.3 on) at all.
const RETURNS: &str = "x-delivery-count";
const DELIVERIES: &str = "x-acquired-count";

pub(super) fn delivery(message: lapin::message::Delivery, queue: &str) -> Delivery {
    let properties = &message.properties;
    let id = properties.message_id().as_ref().and_then(|id| Uuid::try_parse(id.as_str()).ok());
    let none = FieldTable::default();
    let table = properties.headers().as_ref().unwrap_or(&none).inner();
    let tombstone = matches!(table.get(TOMBSTONE), Some(AMQPValue::Boolean(true)));
    let text = |value: &Option<ShortString>| value.as_ref().map(ToString::to_string);
    let seconds = properties.timestamp().map(Duration::from_secs);
    let count = |name| table.get(name).and_then(AMQPValue::as_long_long_int).and_then(|it| it.try_into().ok());
    let long = |name| table.get(name).and_then(AMQPValue::as_long_string);
    let returns = count(RETURNS).unwrap_or_default();
    let headers: Vec<_> = table.iter().flat_map(|(name, value)| header(name.as_str(), value)).collect();
    let contents = Contents {
        // Other senders leave this header out.
        topic: long(TOPIC_HEADER).map_or_else(
            || message.routing_key.to_string(),
            |topic| String::from_utf8_lossy(topic.as_bytes()).into_owned(),
        ),
        key: long(KEY).map(|key| key.as_bytes().to_vec()),
        event_type: typed(text(properties.kind()), &headers),
        content_type: text(properties.content_type()),
        headers,
        payload: (!tombstone).then_some(message.data),
    };
    Delivery {
        enqueued_at: seconds.and_then(|time| SystemTime::UNIX_EPOCH.checked_add(time)),
        place: queue.to_owned(),
        problem: id.is_none().then_some("the message has no property `message_id` that is a UUID"),
        returns,
        deliveries: count(DELIVERIES).unwrap_or(returns),
        doubt: if message.redelivered { Doubt::Redelivered } else { Doubt::None },
        ..Delivery::new(id.unwrap_or_else(Uuid::now_v7), contents)
    }
}

/// A header of the message, once for each of its values; headers that RabbitMQ adds (`x-death`) are left out.
fn header(name: &str, value: &AMQPValue) -> Vec<(String, String)> {
    if matches!(name, KEY | TOMBSTONE | TOPIC_HEADER) {
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

#[cfg(test)]
mod properties {
    use std::collections::BTreeMap;

    use lapin::{
        BasicProperties,
        types::{ByteArray, FieldArray, LongString},
    };
    use proptest::{collection::vec, prelude::*};
    use testkit::strategies::text;

    use super::*;
    use crate::properties::{bytes, id, look_at};

    /// A text that fits into a short string.
    fn short() -> impl Strategy<Value = ShortString> {
        text().prop_map(|text| ShortString::try_new(text).unwrap_or_default())
    }

    fn long(bytes: impl Into<Vec<u8>>) -> AMQPValue {
        AMQPValue::LongString(LongString::from(bytes))
    }

    /// A value of any type, also lists and tables within each other.
    fn value() -> impl Strategy<Value = AMQPValue> {
        let leaf = prop_oneof![
            vec(any::<u8>(), 0..20).prop_map(long),
            text().prop_map(long),
            short().prop_map(AMQPValue::ShortString),
            any::<bool>().prop_map(AMQPValue::Boolean),
            any::<i64>().prop_map(AMQPValue::LongLongInt),
            any::<i32>().prop_map(AMQPValue::LongInt),
            any::<u64>().prop_map(AMQPValue::Timestamp),
            any::<f64>().prop_map(AMQPValue::Double),
            vec(any::<u8>(), 0..9).prop_map(|bytes| AMQPValue::ByteArray(ByteArray::from(bytes))),
            Just(AMQPValue::Void),
        ];
        leaf.prop_recursive(3, 20, 5, |inner| {
            let list = vec(inner.clone(), 0..5).prop_map(|values| AMQPValue::FieldArray(FieldArray::from(values)));
            let table = prop::collection::btree_map(short(), inner, 0..5);
            prop_oneof![list, table.prop_map(|table| AMQPValue::FieldTable(FieldTable::from(table)))]
        })
    }

    /// The headers of a message; those with a meaning occur often.
    fn table() -> impl Strategy<Value = BTreeMap<ShortString, AMQPValue>> {
        let known = vec![KEY, TOMBSTONE, TOPIC_HEADER, "sequence"];
        let known = prop::sample::select(known).prop_map(|name| ShortString::try_new(name).unwrap_or_default());
        let true_value = Just(AMQPValue::Boolean(true));
        prop::collection::btree_map(prop_oneof![known, short()], prop_oneof![3 => value(), 1 => true_value], 0..6)
    }

    fn properties() -> impl Strategy<Value = BasicProperties> {
        let id = id().prop_map(|id| ShortString::try_new(id).unwrap_or_default());
        let texts = (prop::option::of(id), prop::option::of(short()), prop::option::of(short()));
        let others = (prop::option::of(table()), prop::option::of(any::<u64>()));
        (texts, others).prop_map(|((id, kind, content_type), (table, timestamp))| {
            let made = BasicProperties::default();
            let made = id.into_iter().fold(made, BasicProperties::with_message_id);
            let made = kind.into_iter().fold(made, BasicProperties::with_type);
            let made = content_type.into_iter().fold(made, BasicProperties::with_content_type);
            let made = table.into_iter().fold(made, |made, table| made.with_headers(FieldTable::from(table)));
            timestamp.into_iter().fold(made, BasicProperties::with_timestamp)
        })
    }

    fn message(routing_key: &ShortString, properties: BasicProperties, data: Vec<u8>) -> lapin::message::Delivery {
        let none = ShortString::default();
        let mut message = lapin::message::Delivery::mock(1, none, routing_key.clone(), false, data);
        message.properties = properties;
        message
    }

    proptest! {
        /// From any sender. A message that is not of an outbox reports that.
        #[test]
        fn every_message_is_a_delivery(
            properties in properties(), routing_key in short(), data in vec(any::<u8>(), 0..40),
        ) {
            let read = delivery(message(&routing_key, properties.clone(), data.clone()), "queue");
            let id = properties.message_id().as_ref().and_then(|id| Uuid::try_parse(id.as_str()).ok());
            prop_assert_eq!(read.problem.is_none(), id.is_some());
            prop_assert!(id.is_none_or(|id| id == read.id));
            let in_place = properties.kind().as_ref().map(ToString::to_string);
            prop_assert_eq!(&read.contents.event_type, &typed(in_place, &read.contents.headers));
            prop_assert_eq!(read.contents.content_type.as_deref(), properties.content_type().as_ref().map(ShortString::as_str));

            let headers = properties.headers().clone().unwrap_or_default();
            let is_tombstone = headers.inner().get(TOMBSTONE) == Some(&AMQPValue::Boolean(true));
            prop_assert_eq!(&read.contents.payload, &Some(data).filter(|_| !is_tombstone));
            let text = |name| headers.inner().get(name).and_then(AMQPValue::as_long_string).map(LongString::as_bytes);
            prop_assert_eq!(read.contents.key.as_deref(), text(KEY));
            let topic = text(TOPIC_HEADER).map(String::from_utf8_lossy);
            prop_assert_eq!(read.contents.topic.as_str(), topic.as_deref().unwrap_or(routing_key.as_str()));
            let named = |name: &str| headers.contains_key(name) && !matches!(name, KEY | TOMBSTONE | TOPIC_HEADER);
            prop_assert!(read.contents.headers.iter().all(|(name, _)| named(name)));
            look_at(&read)?;
        }

        /// The relay's property of the same name ends with this table: a list if a name has several values.
        #[test]
        fn what_the_relay_writes_is_read_as_it_was(
            id in any::<u128>(), described in (prop::option::of(short()), prop::option::of(short())),
            headers in prop::collection::btree_map(short(), vec(text(), 1..4), 0..6),
            (key, payload, topic) in (bytes(), bytes(), text()), seconds in any::<u32>(),
        ) {
            let (id, (kind, content_type)) = (Uuid::from_u128(id), described);
            let own: BTreeMap<_, _> =
                headers.into_iter().filter(|(name, _)| !matches!(name.as_str(), KEY | TOMBSTONE | TOPIC_HEADER)).collect();
            let values = |values: &Vec<String>| match values.as_slice() {
                [only] => long(only.as_str()),
                all => AMQPValue::FieldArray(FieldArray::from(all.iter().map(|it| long(it.as_str())).collect::<Vec<_>>())),
            };
            let mut table = FieldTable::from(
                own.iter().map(|(name, all)| (name.clone(), values(all))).collect::<BTreeMap<_, _>>(),
            );
            table.insert(TOPIC_HEADER.into(), long(topic.as_str()));
            if let Some(key) = &key {
                table.insert(KEY.into(), long(key.as_slice()));
            }
            if payload.is_none() {
                table.insert(TOMBSTONE.into(), AMQPValue::Boolean(true));
            }
            let made = BasicProperties::default().with_headers(table).with_timestamp(seconds.into());
            let made = made.with_message_id(id.to_string().into());
            let made = kind.clone().into_iter().fold(made, BasicProperties::with_type);
            let made = content_type.clone().into_iter().fold(made, BasicProperties::with_content_type);
            let read = delivery(message(&"orders".into(), made, payload.clone().unwrap_or_default()), "queue");

            prop_assert_eq!((read.id, read.problem), (id, None));
            prop_assert_eq!((&read.contents.key, &read.contents.payload), (&key, &payload));
            prop_assert_eq!(&read.contents.topic, &topic);
            prop_assert_eq!(read.contents.event_type, typed(kind.map(String::from), &read.contents.headers));
            prop_assert_eq!(read.contents.content_type, content_type.map(String::from));
            prop_assert_eq!(read.enqueued_at, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.into())));
            let one = |name: &ShortString, value: String| (name.to_string(), value);
            let wanted: Vec<(String, String)> =
                own.into_iter().flat_map(|(name, all)| all.into_iter().map(move |it| one(&name, it))).collect();
            prop_assert_eq!(read.contents.headers, wanted);
        }
    }
}
