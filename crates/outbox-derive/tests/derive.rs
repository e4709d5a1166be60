//! What the attributes say is what the event is.

use std::time::Duration;

use outbox_core::{BoxError, Event};
use prost::Message as _;
use serde::Serialize;

#[derive(Serialize, Event)]
#[event(topic = "orders", type = "order.placed.v1", lane = 3, delay = "90s")]
struct OrderPlaced {
    #[event(key)]
    order: u64,
    cents: u64,
}

#[test]
fn the_type_says_topic_type_lane_and_delay_and_a_field_the_key() {
    let event = OrderPlaced { order: 7, cents: 995 };
    assert_eq!((OrderPlaced::TOPIC, OrderPlaced::TYPE), ("orders", "order.placed.v1"));
    assert_eq!(OrderPlaced::CONTENT_TYPE, "application/json");
    assert_eq!(event.key(), Some(b"7".to_vec()));
    assert_eq!((event.lane(), event.delay()), (3, Some(Duration::from_secs(90))));
    assert_eq!(event.payload().unwrap(), br#"{"order":7,"cents":995}"#);
}

#[derive(Serialize, Event)]
#[event(topic = "reminders", type = "reminder")]
struct Reminder<'a, T: Serialize>(
    #[event(key)] Option<&'a str>,
    #[event(lane)] u16,
    #[serde(skip)]
    #[event(delay)]
    Option<Duration>,
    T,
);

#[test]
fn fields_say_key_lane_and_delay_of_each_event() {
    let wait = Duration::from_millis(1500);
    let event = Reminder(Some("größe"), 9, Some(wait), "x");
    assert_eq!((event.key(), event.lane(), event.delay()), (Some("größe".into()), 9, Some(wait)));
    let event = Reminder(None, 0, None, 5);
    assert_eq!((event.key(), event.lane(), event.delay()), (None, 0, None));
    assert_eq!(event.payload().unwrap(), b"[null,0,5]");
}

#[derive(Serialize, Event)]
#[event(topic = "accounts", type = "account", key = Self::owner)]
enum Account {
    Opened { owner: String },
    Closed(String),
}

impl Account {
    fn owner(&self) -> &str {
        match self {
            Self::Opened { owner } | Self::Closed(owner) => owner,
        }
    }
}

#[test]
fn the_key_of_an_enum_comes_from_a_function() {
    let keys = [Account::Opened { owner: "ann".into() }, Account::Closed("bob".into())].map(|event| event.key());
    assert_eq!(keys, [Some(b"ann".to_vec()), Some(b"bob".to_vec())]);
}

/// No serde: the bytes are made elsewhere.
#[derive(Event)]
#[event(topic = "images", type = "image", no_key, content_type = "image/png", delay = "1h")]
struct Image {
    #[event(payload)]
    bytes: Vec<u8>,
}

#[test]
fn a_field_can_be_the_payload() {
    let event = Image { bytes: vec![0, 255] };
    assert_eq!((event.payload().unwrap(), event.key(), event.lane()), (vec![0, 255], None, 0));
    assert_eq!((Image::CONTENT_TYPE, event.delay()), ("image/png", Some(Duration::from_secs(3600))));
}

#[derive(PartialEq, prost::Message, Event)]
#[event(topic = "orders", type = "order.paid")]
#[event(encode = prost::Message::encode_to_vec, content_type = "application/protobuf")]
struct OrderPaid {
    #[event(key)]
    #[prost(uint64, tag = "1")]
    order: u64,
}

#[test]
fn a_prost_message_is_an_event() {
    let event = OrderPaid { order: 300 };
    assert_eq!(OrderPaid::CONTENT_TYPE, "application/protobuf");
    assert_eq!(OrderPaid::decode(&*event.payload().unwrap()).unwrap(), event);
    assert_eq!(event.key(), Some(b"300".to_vec()));
}

#[derive(Event)]
#[event(topic = "t", type = "t", no_key, encode = half, content_type = "text/plain")]
struct Number(u8);

fn half(number: &Number) -> Result<Vec<u8>, BoxError> {
    if number.0.is_multiple_of(2) { Ok(vec![number.0 / 2]) } else { Err("odd".into()) }
}

#[test]
fn a_function_that_encodes_may_fail() {
    assert_eq!(Number(6).payload().unwrap(), [3]);
    assert_eq!(Number(7).payload().unwrap_err().to_string(), "odd");
}

mod renamed {
    pub(crate) mod library {
        pub(crate) use outbox_core::{BoxError, Event, derived, to_json};
    }
}

#[derive(Serialize, Event)]
#[event(crate = "renamed::library", topic = "t", type = "t")]
struct Renamed(#[event(key)] u8);

#[test]
fn the_crate_may_have_another_name() {
    assert_eq!((Renamed(7).key(), Renamed(7).payload().unwrap()), (Some(b"7".to_vec()), b"7".to_vec()));
}

#[test]
fn mistakes_are_pointed_at_with_what_to_write() {
    trybuild::TestCases::new().compile_fail("tests/mistakes/*.rs");
}
