//! The examples of the specifications: the JSON format of CloudEvents, its bindings for Kafka and AMQP, and Debezium's
//! outbox event router. Example ids that are no UUIDs are replaced by one.

use std::sync::Arc;

use outbox_core::Contents;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::sink::Destination;

const ID: &str = "4d47e190-0402-4048-bc2c-89dd54343cdc";
/// `2018-04-05T17:31:00Z`
const TIME: i64 = 1_522_949_460_000_000;
const KAFKA_JSON: Envelope = Envelope::CloudEventsJson(Binding::KAFKA);
const KAFKA_BINARY: Envelope = Envelope::CloudEventsBinary(Binding::KAFKA);

fn message(content_type: Option<&str>, payload: Option<&[u8]>, headers: &[(&str, &str)]) -> Outgoing {
    Outgoing {
        message_id: Uuid::parse_str(ID).unwrap(),
        key_hash: 1,
        contents: Contents {
            topic: "mytopic".to_owned(),
            key: Some(b"mykey".to_vec()),
            event_type: Some("com.example.someevent".to_owned()),
            content_type: content_type.map(Into::into),
            headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            payload: payload.map(Into::into),
        },
        created_at_micros: TIME,
        destination: Arc::new(Destination { sink: "s".into(), target: "mytopic".into(), routing_key: String::new() }),
        progress: None,
    }
}

/// The event of the examples of both bindings.
fn example(content_type: &str, payload: &[u8], binding: Binding) -> Outgoing {
    // 2018-04-05T03:56:24Z
    let created_at_micros = 1_522_900_584_000_000;
    let mut example = Outgoing { created_at_micros, ..message(Some(content_type), Some(payload), &[]) };
    wrap(&mut example, Envelope::CloudEventsBinary(binding), "/mycontext/subcontext").unwrap();
    example
}

fn typed(event_type: Option<&str>, mut message: Outgoing) -> Outgoing {
    message.contents.event_type = event_type.map(Into::into);
    message
}

fn wrapped(mut message: Outgoing, envelope: Envelope) -> Outgoing {
    wrap(&mut message, envelope, "/mycontext").unwrap();
    message
}

fn refused(mut message: Outgoing, envelope: Envelope) -> String {
    wrap(&mut message, envelope, "/mycontext").unwrap_err()
}

fn pairs(message: &Outgoing) -> Vec<(&str, &str)> {
    message.contents.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

fn event(message: &Outgoing) -> Value {
    assert_eq!(message.contents.content_type.as_deref(), Some("application/cloudevents+json; charset=UTF-8"));
    serde_json::from_slice(message.contents.payload.as_ref().unwrap()).unwrap()
}

#[test]
fn raw_changes_nothing() {
    let wrapped = wrapped(message(Some(""), Some(b"x"), &[("ce_id", "mine")]), Envelope::Raw);
    assert_eq!((pairs(&wrapped), wrapped.contents.payload.as_deref()), (vec![("ce_id", "mine")], Some(&b"x"[..])));
    assert_eq!((wrapped.contents.content_type.as_deref(), wrapped.contents.event_type.is_some()), (Some(""), true));
}

#[test]
fn the_example_of_the_kafka_binding_in_binary_mode() {
    let avro = b"\x00\x01\xff";
    let wrapped = example("application/avro", avro, Binding::KAFKA);
    let headers = [
        ("ce_specversion", "1.0"),
        ("ce_type", "com.example.someevent"),
        ("ce_source", "/mycontext/subcontext"),
        ("ce_id", ID),
        ("ce_time", "2018-04-05T03:56:24Z"),
    ];
    assert_eq!(pairs(&wrapped), headers);
    // The sink sends it as the header `content-type`.
    assert_eq!(wrapped.contents.content_type.as_deref(), Some("application/avro"));
    assert_eq!(
        (wrapped.contents.key.as_deref(), wrapped.contents.payload.as_deref()),
        (Some(&b"mykey"[..]), Some(&avro[..]))
    );
}

#[test]
fn the_example_of_the_amqp_binding_in_binary_mode() {
    let content_type = "application/json; charset=utf-8";
    let wrapped = example(content_type, b"{}", Binding::AMQP);
    let headers = [
        ("cloudEvents:specversion", "1.0"),
        ("cloudEvents:type", "com.example.someevent"),
        ("cloudEvents:source", "/mycontext/subcontext"),
        ("cloudEvents:id", ID),
        ("cloudEvents:time", "2018-04-05T03:56:24Z"),
    ];
    assert_eq!(pairs(&wrapped), headers);
    assert_eq!(
        (wrapped.contents.content_type.as_deref(), wrapped.contents.payload.as_deref()),
        (Some(content_type), Some(&b"{}"[..]))
    );
}

/// A number among the extensions is a string here, because headers have no type.
#[test]
fn the_examples_of_the_json_format() {
    let cases: [(Option<&str>, &[u8], Value); 6] = [
        (Some("application/vnd.apache.thrift.binary"), b"\x00\xffbytes", json!({ "data_base64": "AP9ieXRlcw==" })),
        (Some("application/xml"), br#"<much wow="xml"/>"#, json!({ "data": "<much wow=\"xml\"/>" })),
        (
            Some("application/json"),
            br#"{ "appinfoA" : "abc", "appinfoB" : 123, "appinfoC" : true }"#,
            json!({ "data": { "appinfoA": "abc", "appinfoB": 123, "appinfoC": true } }),
        ),
        (Some("application/json"), b"1.5", json!({ "data": 1.5 })),
        (None, b"\"I'm just a string\"", json!({ "data": "I'm just a string" })),
        (None, b"\xff", json!({ "data_base64": "/w==" })),
    ];
    for (content_type, payload, data) in cases {
        let extensions = [("comexampleextension1", "value"), ("comexampleothervalue", "5")];
        let wrapped = wrapped(message(content_type, Some(payload), &extensions), KAFKA_JSON);
        let mut expected = json!({
            "specversion": "1.0", "type": "com.example.someevent", "source": "/mycontext", "id": ID,
            "time": "2018-04-05T17:31:00Z", "comexampleextension1": "value", "comexampleothervalue": "5",
        });
        let content_type = content_type.map(|it| ("datacontenttype".to_owned(), it.into()));
        expected.as_object_mut().unwrap().extend(content_type);
        expected.as_object_mut().unwrap().extend(data.as_object().unwrap().clone());
        assert_eq!(event(&wrapped), expected);
        assert_eq!(pairs(&wrapped), extensions, "headers travel as they are");
    }
}

#[test]
fn json_is_put_in_byte_for_byte() {
    let exact = r#"{ "n": 123456789012345678901234567890, "f": 1.10 }"#;
    let wrapped = wrapped(message(None, Some(exact.as_bytes()), &[]), KAFKA_JSON);
    let payload = String::from_utf8(wrapped.contents.payload.unwrap()).unwrap();
    assert!(payload.ends_with(&format!(",\"data\":{exact}}}")), "{payload}");
}

#[test]
fn the_content_type_decides_how_the_payload_is_carried() {
    for content_type in ["text/plain", "TEXT/HTML ; Charset=\"UTF-8\"", "image/svg+xml", "text/csv;header=present"] {
        assert_eq!(event(&wrapped(message(Some(content_type), Some(b"1"), &[]), KAFKA_JSON))["data"], "1");
    }
    for content_type in ["application/vnd.shop+json", "Text/JSON; charset=utf-8"] {
        assert_eq!(event(&wrapped(message(Some(content_type), Some(b"1"), &[]), KAFKA_JSON))["data"], 1);
    }
    for content_type in ["text/plain; charset=iso-8859-1", "application/octet-stream", "json", "application/jsonl"] {
        let event = event(&wrapped(message(Some(content_type), Some(b"1"), &[]), KAFKA_JSON));
        assert_eq!((&event["data_base64"], &event["datacontenttype"]), (&json!("MQ=="), &json!(content_type)));
    }
    let latin = event(&wrapped(message(Some("text/plain"), Some(b"\xfc"), &[]), KAFKA_JSON));
    assert_eq!((&latin["data_base64"], latin.get("data")), (&json!("/A=="), None));
    let empty = event(&wrapped(message(Some(""), Some(b""), &[]), KAFKA_JSON));
    assert_eq!((&empty["data_base64"], empty.get("datacontenttype")), (&json!(""), None));
}

#[test]
fn what_says_that_it_is_json_and_is_not_is_refused_without_being_shown() {
    for payload in [&b"{\"hunter2\":"[..], b"", b"{} {}", b"\"\xff\"", b"\xef\xbb\xbf{}", b"{\"a\":01}"] {
        let error = refused(message(Some("application/json"), Some(payload), &[]), KAFKA_JSON);
        assert!(error.starts_with("the payload is not the JSON that its content type says: "), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
        wrapped(message(Some("application/json"), Some(payload), &[]), KAFKA_BINARY);
    }
}

#[test]
fn an_event_without_type_has_that_of_its_topic() {
    for event_type in [None, Some("")] {
        let sent = || typed(event_type, message(None, Some(b"1"), &[]));
        assert_eq!(event(&wrapped(sent(), KAFKA_JSON))["type"], "mytopic");
        assert!(pairs(&wrapped(sent(), KAFKA_BINARY)).contains(&("ce_type", "mytopic")));
        assert_eq!(pairs(&wrapped(sent(), Envelope::Debezium)).is_empty(), event_type.is_none());
    }
    for event_type in ["a\nb", "\u{fdd0}", "\u{1fffe}", "\u{85}"] {
        for envelope in [KAFKA_JSON, KAFKA_BINARY] {
            let sent = typed(Some(event_type), message(None, Some(b"1"), &[]));
            assert!(refused(sent, envelope).starts_with("the event type has a character"));
        }
    }
}

#[test]
fn headers_that_can_be_attributes_are_extensions_and_none_replaces_an_attribute() {
    let own = [
        ("traceparent", "00-1"),
        ("subject", "größe"),
        ("ce_id", "mine"),
        ("id", "mine"),
        ("sequence", "10"),
        ("dataschema", "x"),
        ("Upper", "x"),
        ("with-dash", "x"),
        ("withtwentyonelettersx", "x"),
        ("lines", "a\nb"),
        ("empty", ""),
    ];
    let json = wrapped(message(None, Some(b"1"), &own), KAFKA_JSON);
    let names = "specversion type source id time traceparent subject data";
    let event = event(&json);
    assert_eq!(event.as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>().join(" "), names);
    assert_eq!((&event["id"], &event["subject"]), (&json!(ID), &json!("größe")));
    assert_eq!(pairs(&json), own, "headers travel as they are");
    let binary = wrapped(message(None, Some(b"1"), &own), KAFKA_BINARY);
    let headers = pairs(&binary);
    let (attributes, rest) = headers.split_at(7);
    assert_eq!(&attributes[5..], [("ce_traceparent", "00-1"), ("ce_subject", "größe")]);
    assert_eq!(rest, own.into_iter().filter(|(name, _)| *name != "ce_id").collect::<Vec<_>>());
}

#[test]
fn a_tombstone_stays_one_and_its_attributes_are_headers() {
    for envelope in [KAFKA_BINARY, KAFKA_JSON] {
        let wrapped = wrapped(message(Some("text/plain"), None, &[]), envelope);
        assert_eq!(
            (wrapped.contents.payload.as_deref(), wrapped.contents.content_type.as_deref()),
            (None, Some("text/plain"))
        );
        assert!(pairs(&wrapped).contains(&("ce_id", ID)));
    }
    assert_eq!(wrapped(message(None, None, &[]), Envelope::Debezium).contents.payload, None);
}

/// The sink adds the header `id`, the only one that the router sends by default.
#[test]
fn the_example_of_the_outbox_event_router() {
    let order = br#"{"id": 1, "lineItems": [{"id": 1, "quantity": 2, "totalPrice": 39.98}], "customerId": 123}"#;
    let sent = typed(None, message(Some("application/json"), Some(order), &[]));
    let plain = wrapped(sent, Envelope::Debezium);
    assert_eq!((pairs(&plain), plain.contents.payload.as_deref()), (Vec::new(), Some(&order[..])));
    assert_eq!(
        (&plain.contents.event_type, &plain.contents.content_type, plain.message_id.to_string()),
        (&None, &None, ID.to_owned())
    );
    let typed = wrapped(message(None, Some(order), &[("eventType", "mine"), ("a", "b")]), Envelope::Debezium);
    assert_eq!(pairs(&typed), [("eventType", "com.example.someevent"), ("a", "b")]);
    assert_eq!(typed.contents.event_type, None);
}
