//! Properties of every row that a relay reads. `PROPTEST_CASES` is the number of cases of each property.

use std::{collections::HashSet, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use outbox_core::Contents;
use proptest::{collection::vec, prelude::*};
use serde_json::{Map, Value};
use testkit::strategies::text;
use uuid::Uuid;

use crate::{
    pipeline::read::{
        envelope,
        route::{self, Routes},
    },
    settings::{AfterDead, Binding, Envelope, OnRejected, Route},
    sink::{Destination, Outgoing, Receipt, conformance::Draft},
};

fn route(topics: &str, template: &str) -> Route {
    let topics = topics.to_owned();
    let template = template.to_owned();
    let on_rejected = OnRejected::Dead;
    let after_dead = AfterDead::Skip;
    Route {
        topics,
        sink: String::new(),
        target: template.clone(),
        routing_key: template,
        on_rejected,
        after_dead,
        pipelined: false,
        envelope: Envelope::Raw,
        retry: None,
        source: String::new(),
    }
}

fn content_type() -> impl Strategy<Value = String> {
    let types = vec!["application/json", "text/plain", "text/xml; charset=latin1", "image/png", "x/y+json;a=b", ""];
    prop::sample::select(types).prop_map(str::to_owned)
}

/// Generates bytes, texts, and JSON or nearly JSON.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..40),
        prop_oneof!["[\\[\\]{}\":,a-c0-9. ]{0,12}", any::<String>()].prop_map(String::into_bytes),
    ]
}

/// Microseconds of the times that a column can hold: the years 1 to 9999.
const TIMES: std::ops::Range<i64> = -62_135_596_800_000_000..253_402_300_800_000_000;

/// Generates a message as it is read from its row, with any edit by hand. The names of its headers differ, as those of
/// a JSON object do.
pub(crate) fn outgoing() -> impl Strategy<Value = Outgoing> {
    let content_type = prop_oneof![content_type(), text()];
    let described = (text(), prop::option::of(text()), prop::option::of(content_type));
    let bytes = (prop::option::of(vec(any::<u8>(), 0..40)), prop::option::of(payload()));
    let headers = prop::collection::btree_map(text(), text(), 0..6);
    let made = (any::<u128>(), prop_oneof![TIMES, any::<i64>()]);
    (described, bytes, headers, made, (text(), text())).prop_map(|(described, (key, payload), headers, made, place)| {
        let (topic, event_type, content_type) = described;
        Outgoing {
            message_id: Uuid::from_u128(made.0),
            key_hash: outbox_core::key_hash(&topic, key.as_deref()),
            contents: Contents {
                topic,
                key,
                event_type,
                content_type,
                headers: headers.into_iter().collect(),
                payload,
            },
            created_at_micros: made.1,
            destination: Arc::new(Destination { sink: "s".into(), target: place.0, routing_key: place.1 }),
            progress: None,
        }
    })
}

/// Returns the attributes of a message's event that every event has.
fn attributes(message: &Outgoing, source: &str) -> [(&'static str, String); 4] {
    let event_type =
        message.contents.event_type.as_deref().filter(|it| !it.is_empty()).unwrap_or(&message.contents.topic);
    [
        ("specversion", "1.0".to_owned()),
        ("type", event_type.to_owned()),
        ("source", source.to_owned()),
        ("id", message.message_id.to_string()),
    ]
}

/// Returns the content type, or none if it is empty.
fn content_type_of(message: &Outgoing) -> Option<&str> {
    message.contents.content_type.as_deref().filter(|it| !it.is_empty())
}

/// Returns the microseconds since 1970 of a time in RFC 3339; `None` for another text.
fn micros(time: &str) -> Option<i64> {
    let time = time.strip_suffix('Z')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let parts: Vec<i64> = time.split(['-', 'T', ':']).map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let (date, of_day) = parts.split_at_checked(3)?;
    let days = match *date {
        [year, month @ 1..=12, day @ 1..=31] => {
            // January and February are the end of the year before.
            let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
            let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
            365 * year + leap_days + (153 * month + 2) / 5 + day - 719_469
        }
        _ => return None,
    };
    let seconds = match *of_day {
        [hour @ 0..24, minute @ 0..60, second @ 0..60] => hour * 3600 + minute * 60 + second,
        _ => return None,
    };
    let fraction: i64 = format!("{fraction:0<6}").parse().ok()?;
    Some((days * 86_400 + seconds) * 1_000_000 + fraction)
}

proptest! {
    /// What a message holds is put in once, and is not read as a template again.
    #[test]
    fn every_message_is_routed_or_is_not(
        topic in any::<String>(), pattern in "[a-c*]{0,6}", template in "[a-z{}]{0,20}|\\{topic\\}|\\{key\\}x",
        key in prop::option::of(vec(any::<u8>(), 0..40)), lane in any::<u16>(),
    ) {
        let found = Routes::new(&[route(&pattern, &template)]).resolve(&topic, None, key.as_deref(), lane);
        prop_assert_eq!(found.is_ok(), route::matches(&pattern, &topic));
        if let (Ok(found), "{topic}") = (found, template.as_str()) {
            prop_assert_eq!(&found.destination.target, &topic);
        }
    }

    /// A payload need not fit its content type.
    #[test]
    fn every_payload_is_in_an_event_as_it_was_or_is_refused(
        payload in payload(), content_type in prop::option::of(content_type()),
    ) {
        let destination = Destination { sink: "s".into(), target: "t".into(), routing_key: String::new() };
        let mut message = Draft::new(&Arc::new(destination), payload.clone()).build();
        message.contents.content_type = content_type;
        if envelope::wrap(&mut message, Envelope::CloudEventsJson(Binding::KAFKA), "/").is_ok() {
            let event: Value = serde_json::from_slice(&message.contents.payload.unwrap_or_default())?;
            prop_assert!(event.get("data").is_some() != event.get("data_base64").is_some());
            if let Some(text) = event.get("data_base64").and_then(Value::as_str) {
                prop_assert_eq!(BASE64.decode(text)?, payload);
            }
        }
    }

    /// There are two refusals. A message that is sent has its key and id, and is a tombstone if it was one.
    #[test]
    fn every_message_goes_into_each_envelope_or_is_refused(message in outgoing(), source in text()) {
        for envelope in [
            Envelope::Raw,
            Envelope::CloudEventsBinary(Binding::KAFKA),
            Envelope::CloudEventsBinary(Binding::AMQP),
            Envelope::CloudEventsJson(Binding::KAFKA),
            Envelope::CloudEventsJson(Binding::AMQP),
            Envelope::Debezium,
        ] {
            let mut wrapped = message.clone();
            if let Err(problem) = envelope::wrap(&mut wrapped, envelope, &source) {
                let known = ["the event type has a character", "the payload is not the JSON that its content type \
                                                                says"];
                prop_assert!(known.iter().any(|known| problem.starts_with(known)), "{problem}");
                prop_assert!(!matches!(envelope, Envelope::Raw | Envelope::Debezium), "{problem}");
                continue;
            }
            prop_assert_eq!((&wrapped.contents.key, wrapped.message_id), (&message.contents.key, message.message_id));
            prop_assert_eq!(wrapped.contents.payload.is_none(), message.contents.payload.is_none());
            let names: HashSet<&str> = wrapped.contents.headers.iter().map(|(name, _)| name.as_str()).collect();
            prop_assert_eq!(names.len(), wrapped.contents.headers.len(), "a name is there twice");
        }
    }

    /// An event has its attributes once, extensions only from headers, and the payload byte for byte.
    #[test]
    fn an_event_in_json_is_read_as_its_message(mut message in outgoing(), payload in payload(), source in text()) {
        message.contents.payload = Some(payload.clone());
        let mut wrapped = message.clone();
        if envelope::wrap(&mut wrapped, Envelope::CloudEventsJson(Binding::KAFKA), &source).is_ok() {
            let json = wrapped.contents.payload.unwrap_or_default();
            let mut event: Map<String, Value> = serde_json::from_slice(&json)?;
            for (name, value) in attributes(&message, &source) {
                prop_assert_eq!(event.remove(name), Some(Value::from(value)));
            }
            let content_type = event.remove("datacontenttype");
            prop_assert_eq!(content_type.as_ref().and_then(Value::as_str), content_type_of(&message));
            let time = event.remove("time");
            if TIMES.contains(&message.created_at_micros) {
                let read = time.as_ref().and_then(Value::as_str).and_then(micros);
                prop_assert_eq!(read, Some(message.created_at_micros));
            }
            match (event.remove("data"), event.remove("data_base64")) {
                (None, Some(Value::String(text))) => prop_assert_eq!(BASE64.decode(text)?, payload),
                (Some(Value::String(text)), None) if text.as_bytes() == payload => {}
                (Some(_), None) => {
                    let end = [&payload[..], b"}"].concat();
                    prop_assert!(json.ends_with(&end));
                },
                other => return Err(TestCaseError::fail(format!("{other:?}"))),
            }
            for (name, value) in &event {
                let header = message.contents.headers.iter().find(|(own, _)| own == name);
                prop_assert_eq!(header.map(|(_, value)| value.as_str()), value.as_str());
                prop_assert!(value.is_string());
            }
            prop_assert_eq!(wrapped.contents.headers, message.contents.headers);
        }
    }

    /// In binary mode the payload is unchanged, and the attributes are headers before those of the service.
    #[test]
    fn an_event_in_headers_is_read_as_its_message(message in outgoing(), source in text()) {
        for (binding, prefix) in [(Binding::KAFKA, "ce_"), (Binding::AMQP, "cloudEvents:")] {
            let mut wrapped = message.clone();
            if envelope::wrap(&mut wrapped, Envelope::CloudEventsBinary(binding), &source).is_err() {
                continue;
            }
            let header = |name: &str| {
                let name = format!("{prefix}{name}");
                wrapped.contents.headers.iter().find(|(it, _)| *it == name).map(|(_, value)| value.as_str())
            };
            for (name, value) in attributes(&message, &source) {
                prop_assert_eq!(header(name), Some(value.as_str()));
            }
            if TIMES.contains(&message.created_at_micros) {
                prop_assert_eq!(header("time").and_then(micros), Some(message.created_at_micros));
            }
            let own = |headers: &[(String, String)]| {
                headers.iter().filter(|(name, _)| !name.starts_with(prefix)).cloned().collect::<Vec<_>>()
            };
            prop_assert_eq!(own(&wrapped.contents.headers), own(&message.contents.headers));
            prop_assert_eq!(&wrapped.contents.payload, &message.contents.payload);
            prop_assert_eq!(wrapped.contents.content_type.as_deref(), content_type_of(&message));
        }
    }

    /// Its consumers read payload, event type and the service's headers unchanged.
    #[test]
    fn what_the_event_router_would_send_is_read_as_its_message(message in outgoing()) {
        let mut wrapped = message.clone();
        prop_assert_eq!(envelope::wrap(&mut wrapped, Envelope::Debezium, "/"), Ok(()));
        let known = message.contents.event_type.iter().map(|event_type| ("eventType".to_owned(), event_type.clone()));
        let own = message.contents.headers.iter().filter(|(name, _)| message.contents.event_type.is_none() || name != "eventType");
        prop_assert_eq!(wrapped.contents.headers, known.chain(own.cloned()).collect::<Vec<_>>());
        prop_assert_eq!((wrapped.contents.event_type, wrapped.contents.content_type), (None, None));
        prop_assert_eq!(wrapped.contents.payload, message.contents.payload);
    }

    #[test]
    fn every_place_makes_a_receipt_that_its_column_holds(place in prop_oneof![text(), any::<String>()]) {
        let receipt = Receipt::new(&place).place;
        prop_assert!(receipt.is_ascii() && receipt.len() <= 255);
        prop_assert!(receipt == place || !place.is_ascii() || place.len() > 255);
    }
}
