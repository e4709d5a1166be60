//! A record of Kafka as a delivery.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, SystemTime},
};

use outbox_core::{Contents, TOPIC_HEADER, Uuid, key_hash};
use rdkafka::{Message, message::Headers};

use crate::{Delivery, delivery::typed};

/// Headers that describe the message: by the relay's own names, and by those of CloudEvents.
const ID: [&str; 2] = ["id", "ce_id"];
const TYPE: [&str; 2] = ["type", "ce_type"];
const CONTENT_TYPE: [&str; 1] = ["content-type"];

pub(super) fn delivery(message: &impl Message) -> Delivery {
    let (mut headers, unreadable) = message.headers().map(headers).unwrap_or_default();
    let unreadable = unreadable.then_some("the record has a header whose name is not UTF-8");
    let id = take(&mut headers, &ID).and_then(|id| Uuid::try_parse(&id).ok());
    let without_id = id.is_none().then_some("the record has no header `id` that is a UUID");
    let millis = message.timestamp().to_millis().and_then(|millis| u64::try_from(millis).ok());
    let event_type = typed(take(&mut headers, &TYPE), &headers);
    let contents = Contents {
        // Other senders leave this header out.
        topic: take(&mut headers, &[TOPIC_HEADER]).unwrap_or_else(|| message.topic().to_owned()),
        key: message.key().map(<[u8]>::to_vec),
        event_type,
        content_type: take(&mut headers, &CONTENT_TYPE),
        headers,
        payload: message.payload().map(<[u8]>::to_vec),
    };
    Delivery {
        enqueued_at: millis.map(|millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis)),
        place: format!("{}/{}@{}", message.topic(), message.partition(), message.offset()),
        problem: unreadable.or(without_id),
        ..Delivery::new(id.unwrap_or_else(|| stand_in(message)), contents)
    }
}

/// The headers that can be read, and whether there are others. rdkafka panics at a name that is not UTF-8. Brokers take
/// such a record, and it would end every member of the group in turn.
fn headers(headers: &impl Headers) -> (Vec<(String, String)>, bool) {
    let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
    let one = |index| catch_unwind(AssertUnwindSafe(|| headers.try_get(index))).ok().flatten();
    let read: Vec<_> = (0..headers.count()).filter_map(one).map(|it| (it.key.to_owned(), text(it.value))).collect();
    let unreadable = read.len() < headers.count();
    (read, unreadable)
}

/// Takes the first of these headers out.
fn take(headers: &mut Vec<(String, String)>, names: &[&str]) -> Option<String> {
    let position = headers.iter().position(|(name, _)| names.contains(&name.as_str()))?;
    Some(headers.remove(position).1)
}

/// An id for a record without one, the same each time it is delivered. In a topic that was made again the place is that
/// of another record, so that time and contents are part of the id.
fn stand_in(message: &impl Message) -> Uuid {
    let place = format!("{}@{} {:?}", message.partition(), message.offset(), message.timestamp());
    let contents = [message.key(), message.payload()].map(|bytes| key_hash(message.topic(), bytes));
    Uuid::from_u64_pair(key_hash(message.topic(), Some(place.as_bytes())), contents[0].rotate_left(1) ^ contents[1])
}

#[cfg(test)]
mod properties {
    use proptest::{collection::vec, prelude::*};
    use rdkafka::message::{Header, OwnedHeaders, OwnedMessage, Timestamp};
    use testkit::strategies::text;

    use super::*;
    use crate::properties::{bytes, id, look_at};

    type Pair = (String, Option<Vec<u8>>);

    /// Headers of any sender. A name ends at a NUL here, as it does for rdkafka.
    fn pairs() -> impl Strategy<Value = Vec<Pair>> {
        let known = vec!["id", "ce_id", "type", "ce_type", "content-type", TOPIC_HEADER];
        let name = prop_oneof![prop::sample::select(known).prop_map(str::to_owned), text()];
        let name = name.prop_map(|name| name.replace('\0', ""));
        let value = prop_oneof![prop_oneof![id(), text()].prop_map(String::into_bytes), vec(any::<u8>(), 0..20)];
        vec((name, prop::option::of(value)), 0..8)
    }

    fn owned(pairs: &[Pair]) -> OwnedHeaders {
        pairs.iter().fold(OwnedHeaders::new(), |headers, (name, value)| {
            headers.insert(Header { key: name.as_str(), value: value.as_deref() })
        })
    }

    fn timestamp() -> impl Strategy<Value = Timestamp> {
        prop_oneof![
            Just(Timestamp::NotAvailable),
            any::<i64>().prop_map(Timestamp::CreateTime),
            any::<i64>().prop_map(Timestamp::LogAppendTime),
        ]
    }

    /// The headers as a handler sees them.
    fn shown(pairs: &[Pair]) -> Vec<(String, String)> {
        let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
        pairs.iter().map(|(name, value)| (name.clone(), text(value.as_deref()))).collect()
    }

    /// The first value with one of these names.
    fn first<'a>(headers: &'a [(String, String)], names: &[&str]) -> Option<&'a str> {
        headers.iter().find(|(name, _)| names.contains(&name.as_str())).map(|(_, value)| value.as_str())
    }

    /// A topic that was made again gives the same places again.
    #[test]
    fn another_record_without_an_id_at_the_same_place_has_another_id() {
        let record = |payload: &[u8], millis| {
            let topic = "foreign".to_owned();
            let time = Timestamp::CreateTime(millis);
            delivery(&OwnedMessage::new(Some(payload.to_vec()), None, topic, time, 0, 7, None)).id
        };
        assert_eq!(record(b"a", 1), record(b"a", 1));
        assert_ne!(record(b"a", 1), record(b"b", 1));
        assert_ne!(record(b"a", 1), record(b"a", 2));
    }

    proptest! {
        /// From any sender, and the same each time. A record that is no message of an outbox reports that.
        #[test]
        fn every_record_is_a_delivery(
            pairs in prop::option::of(pairs()), key in bytes(), payload in bytes(), topic in text(),
            timestamp in timestamp(), (partition, offset) in any::<(i32, i64)>(),
        ) {
            let headers = pairs.as_deref().map(owned);
            let record =
                OwnedMessage::new(payload.clone(), key.clone(), topic.clone(), timestamp, partition, offset, headers);
            let one = delivery(&record);
            let again = delivery(&record);
            prop_assert_eq!((one.id, &one.contents.headers), (again.id, &again.contents.headers));
            prop_assert_eq!((&one.contents.key, &one.contents.payload), (&key, &payload));

            let shown = shown(&pairs.unwrap_or_default());
            let id = first(&shown, &["id", "ce_id"]);
            let is_uuid = id.and_then(|id| Uuid::try_parse(id).ok());
            prop_assert_eq!(one.problem.is_none(), is_uuid.is_some());
            prop_assert!(is_uuid.is_none_or(|id| id == one.id));
            let in_place = first(&shown, &["type", "ce_type"]);
            prop_assert_eq!(one.contents.event_type.as_deref(), in_place.or(first(&shown, &["eventType"])));
            prop_assert_eq!(one.contents.content_type.as_deref(), first(&shown, &["content-type"]));
            let sent_topic = first(&shown, &[TOPIC_HEADER]);
            prop_assert_eq!(one.contents.topic.as_str(), sent_topic.unwrap_or(&topic));
            let taken = [id, in_place, one.contents.content_type.as_deref(), sent_topic].map(|it| it.is_some());
            let taken = taken.map(usize::from);
            prop_assert_eq!(one.contents.headers.len() + taken.iter().sum::<usize>(), shown.len());
            prop_assert!(one.contents.headers.iter().all(|header| shown.contains(header)));
            prop_assert_eq!(one.enqueued_at.is_some(), timestamp.to_millis().is_some_and(|millis| millis >= 0));
            look_at(&one)?;
        }

        /// The relay's property of the same name ends with these headers: those that describe the message come first,
        /// then the envelope's and the service's.
        #[test]
        fn what_the_relay_writes_is_read_as_it_was(
            id in any::<u128>(), event_type in prop::option::of(text()), content_type in prop::option::of(text()),
            own in pairs(), (key, payload) in (bytes(), bytes()), topic in text(),
        ) {
            let id = Uuid::from_u128(id);
            let set = ["id", "type", "content-type", TOPIC_HEADER];
            let own: Vec<Pair> = own.into_iter().filter(|(name, _)| !set.contains(&name.as_str())).collect();
            let values = [Some(id.to_string()), event_type.clone(), content_type.clone(), Some(topic.clone())];
            let known = set.into_iter().zip(values);
            let known = known.into_iter().filter(|(_, value)| value.is_some());
            let known = known.map(|(name, value)| (name.to_owned(), value.map(String::into_bytes)));
            let headers = owned(&known.chain(own.clone()).collect::<Vec<_>>());
            let timestamp = Timestamp::CreateTime(1_700_000_000_123);
            let record_key = key.clone();
            let record_payload = payload.clone();
            let record =
                OwnedMessage::new(record_payload, record_key, "orders".into(), timestamp, 0, 7, Some(headers));
            let read = delivery(&record);

            prop_assert_eq!((read.id, read.problem), (id, None));
            prop_assert_eq!((&read.contents.key, &read.contents.payload), (&key, &payload));
            prop_assert_eq!((&read.contents.content_type, &read.contents.topic), (&content_type, &topic));
            let millis = Duration::from_millis(1_700_000_000_123);
            prop_assert_eq!(read.enqueued_at, Some(SystemTime::UNIX_EPOCH + millis));
            let mut rest = shown(&own);
            // An event of CloudEvents has a type even if its message had none.
            let in_place = if event_type.is_none() { take(&mut rest, &["ce_type"]) } else { None };
            prop_assert_eq!(read.contents.event_type, typed(event_type.or(in_place), &rest));
            prop_assert_eq!(read.contents.headers, rest);
        }
    }

    /// As rdkafka's headers do, where the second name is not UTF-8.
    struct Unreadable;

    impl Headers for Unreadable {
        fn count(&self) -> usize {
            2
        }

        fn try_get(&self, index: usize) -> Option<Header<'_, &[u8]>> {
            assert!(index == 0, "not UTF-8");
            Some(Header { key: "id", value: None })
        }
    }

    #[test]
    fn a_name_that_cannot_be_read_is_no_panic() {
        assert_eq!(headers(&Unreadable), (vec![("id".to_owned(), String::new())], true));
        assert_eq!(headers(&OwnedHeaders::new()), (Vec::new(), false));
    }
}
