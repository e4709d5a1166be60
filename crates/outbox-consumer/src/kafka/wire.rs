//! A record of Kafka as a delivery.

use std::time::{Duration, Instant, SystemTime};

use outbox_core::{Uuid, key_hash};
use rdkafka::{
    Message as _,
    message::{BorrowedMessage, Headers as _},
};

use crate::Delivery;

/// Headers that say what the message is: by the relay's own names, and by those of CloudEvents.
const ID: [&str; 2] = ["id", "ce_id"];
const TYPE: [&str; 2] = ["type", "ce_type"];
const CONTENT_TYPE: [&str; 1] = ["content-type"];

pub(super) fn delivery(message: &BorrowedMessage<'_>) -> Delivery {
    let mut headers = headers(message);
    let id = take(&mut headers, &ID).and_then(|id| Uuid::try_parse(&id).ok());
    let millis = message.timestamp().to_millis().and_then(|millis| u64::try_from(millis).ok());
    Delivery {
        id: id.unwrap_or_else(|| stand_in(message)),
        topic: message.topic().to_owned(),
        key: message.key().map(<[u8]>::to_vec),
        event_type: take(&mut headers, &TYPE),
        content_type: take(&mut headers, &CONTENT_TYPE),
        headers,
        payload: message.payload().map(<[u8]>::to_vec),
        enqueued_at: millis.map(|millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis)),
        attempt: 1,
        received_at: Instant::now(),
        place: format!("{}@{}", message.partition(), message.offset()),
        problem: id.is_none().then_some("the record has no header `id` that is a UUID"),
    }
}

fn headers(message: &BorrowedMessage<'_>) -> Vec<(String, String)> {
    let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
    headers.map(|it| (it.key.to_owned(), String::from_utf8_lossy(it.value.unwrap_or_default()).into_owned())).collect()
}

/// Takes the first of these headers out.
fn take(headers: &mut Vec<(String, String)>, names: &[&str]) -> Option<String> {
    let position = headers.iter().position(|(name, _)| names.contains(&name.as_str()))?;
    Some(headers.remove(position).1)
}

/// An id for a record without one, the same each time it is delivered.
fn stand_in(message: &BorrowedMessage<'_>) -> Uuid {
    let place = format!("{}@{}", message.partition(), message.offset());
    Uuid::from_u64_pair(key_hash(message.topic(), Some(b"no id")), key_hash(message.topic(), Some(place.as_bytes())))
}
