//! For the tests of services (feature `test`): assertions, and a relay in process.
//!
//! The assertions read the messages that a connection sees. Inside a transaction these are its own, and those that were
//! committed before. So a test can assert and then roll back, or each test can have a database by `#[sqlx::test]`.
//!
//! ```no_run
//! # use outbox_core::{Message, Outbox, assert_enqueued, refute_enqueued, sqlx::MySqlPool};
//! # async fn test(pool: MySqlPool) -> Result<(), Box<dyn std::error::Error>> {
//! let mut tx = pool.begin().await?;
//! Outbox::new().enqueue(&mut tx, Message::new("orders", r#"{"order":7}"#).key("7")).await?;
//! assert_enqueued!(&mut tx, topic = "orders", key = "7", json = serde_json::json!({ "order": 7 }));
//! refute_enqueued!(&mut tx, topic = "refunds");
//! # Ok(()) }
//! ```

mod drain;

use serde_json::Value;
use sqlx::MySqlConnection;

pub use self::drain::{Drain, Fault, Published};
use crate::{Contents, store::enqueue::enqueued};

/// Asserts that a message with these fields is enqueued: `assert_enqueued!(&mut tx, topic = "orders", key = "7")`.
/// Other fields may have any value. The possible fields are the methods of [`crate::test::Expected`].
///
/// # Panics
/// If there is none, with the differences from the closest message; and if the database cannot be read.
#[macro_export]
macro_rules! assert_enqueued {
    ($conn:expr, $($field:ident = $value:expr),+ $(,)?) => {
        if let Err(problem) = $crate::test::Expected::new()$(.$field($value))+.find($conn).await {
            ::std::panic!("{problem}");
        }
    };
}

/// Asserts that no message with these fields is enqueued.
///
/// # Panics
/// If there is one; and if the database cannot be read.
#[macro_export]
macro_rules! refute_enqueued {
    ($conn:expr, $($field:ident = $value:expr),+ $(,)?) => {
        if let Err(problem) = $crate::test::Expected::new()$(.$field($value))+.miss($conn).await {
            ::std::panic!("{problem}");
        }
    };
}

/// The expected fields of a message.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Expected {
    fields: Vec<(String, ExpectedMessage)>,
}

#[derive(Debug, Clone)]
enum ExpectedMessage {
    Bytes(Vec<u8>),
    Json(Value),
    Tombstone(bool),
}

impl Expected {
    /// No field yet: matches any message.
    pub fn new() -> Self {
        Self::default()
    }

    /// Its topic.
    pub fn topic(self, topic: &str) -> Self {
        self.with("topic", ExpectedMessage::Bytes(topic.into()))
    }

    /// Its key.
    pub fn key(self, key: impl Into<Vec<u8>>) -> Self {
        self.with("key", ExpectedMessage::Bytes(key.into()))
    }

    /// Its kind of event.
    pub fn event_type(self, event_type: &str) -> Self {
        self.with("event_type", ExpectedMessage::Bytes(event_type.into()))
    }

    /// Its content type.
    pub fn content_type(self, content_type: &str) -> Self {
        self.with("content_type", ExpectedMessage::Bytes(content_type.into()))
    }

    /// A header: name and value.
    pub fn header(self, (name, value): (&str, &str)) -> Self {
        self.with(&format!("header {name}"), ExpectedMessage::Bytes(value.into()))
    }

    /// Its payload, byte for byte.
    pub fn payload(self, payload: impl Into<Vec<u8>>) -> Self {
        self.with("payload", ExpectedMessage::Bytes(payload.into()))
    }

    /// Its payload, as JSON: the order of members and white space do not matter.
    pub fn json(self, json: Value) -> Self {
        self.with("payload", ExpectedMessage::Json(json))
    }

    /// Whether it is a tombstone.
    pub fn tombstone(self, tombstone: bool) -> Self {
        self.with("payload", ExpectedMessage::Tombstone(tombstone))
    }

    fn with(mut self, field: &str, wanted: ExpectedMessage) -> Self {
        self.fields.push((field.to_owned(), wanted));
        self
    }

    /// Looks for such a message. The error is a text for people: there is none, or the database cannot be read.
    pub async fn find(&self, conn: &mut MySqlConnection) -> Result<(), String> {
        let messages = read(conn).await?;
        let differences: Vec<_> = messages.iter().map(|message| self.differences(message)).collect();
        match differences.iter().min_by_key(|differences| differences.len()) {
            Some(closest) if closest.is_empty() => Ok(()),
            Some(closest) => Err(self.problem(messages.len(), closest)),
            None => Err(format!("no message is enqueued at all; expected one with\n{}", self.list())),
        }
    }

    /// Makes sure that there is no such message. The error is a text for people: there is one, or the database cannot
    /// be read.
    pub async fn miss(&self, conn: &mut MySqlConnection) -> Result<(), String> {
        let messages = read(conn).await?;
        match messages.iter().filter(|message| self.differences(message).is_empty()).count() {
            0 => Ok(()),
            found => Err(format!("{found} of {} messages enqueued have\n{}", messages.len(), self.list())),
        }
    }

    fn problem(&self, count: usize, closest: &[String]) -> String {
        let list = self.list();
        let differences = closest.join("\n");
        format!("none of {count} messages enqueued is as expected:\n{list}\nthe closest one differs in\n{differences}")
    }

    fn list(&self) -> String {
        let line = |(field, wanted): &(String, ExpectedMessage)| format!("  {field}: {}", wanted.show());
        self.fields.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// One text for each field that differs.
    fn differences(&self, message: &Contents) -> Vec<String> {
        let differ =
            |(field, wanted): &(String, ExpectedMessage)| wanted.differences(field, value(message, field).as_deref());
        self.fields.iter().map(differ).filter(|lines| !lines.is_empty()).map(|lines| lines.join("\n")).collect()
    }
}

impl ExpectedMessage {
    fn show(&self) -> String {
        match self {
            Self::Bytes(bytes) => show(Some(bytes)),
            Self::Json(json) => json.to_string(),
            Self::Tombstone(true) => "nothing".to_owned(),
            Self::Tombstone(false) => "anything".to_owned(),
        }
    }

    fn differences(&self, field: &str, found: Option<&[u8]>) -> Vec<String> {
        let line = || vec![format!("  {field}: expected {}, found {}", self.show(), show(found))];
        match self {
            Self::Bytes(bytes) if Some(bytes.as_slice()) == found => Vec::new(),
            Self::Tombstone(tombstone) if *tombstone == found.is_none() => Vec::new(),
            Self::Bytes(_) | Self::Tombstone(_) => line(),
            Self::Json(json) => match serde_json::from_slice::<Value>(found.unwrap_or_default()) {
                Ok(found) => json_differences(field, Some(json), Some(&found)),
                Err(_) => line(),
            },
        }
    }
}

/// One line for each place in which two values differ.
fn json_differences(path: &str, expected: Option<&Value>, found: Option<&Value>) -> Vec<String> {
    match (expected, found) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let names = a.keys().chain(b.keys().filter(|name| !a.contains_key(*name)));
            names.flat_map(|name| json_differences(&format!("{path}.{name}"), a.get(name), b.get(name))).collect()
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => (0..a.len().max(b.len()))
            .flat_map(|i| json_differences(&format!("{path}[{i}]"), a.get(i), b.get(i)))
            .collect(),
        _ if expected == found => Vec::new(),
        _ => {
            let show = |value: Option<&Value>| value.map_or_else(|| "nothing".to_owned(), Value::to_string);
            vec![format!("  {path}: expected {}, found {}", show(expected), show(found))]
        }
    }
}

fn value(message: &Contents, field: &str) -> Option<Vec<u8>> {
    let bytes = match field {
        "topic" => Some(message.topic.as_bytes()),
        "key" => message.key.as_deref(),
        "event_type" => message.event_type.as_deref().map(str::as_bytes),
        "content_type" => message.content_type.as_deref().map(str::as_bytes),
        "payload" => message.payload.as_deref(),
        _ => message.header(field.strip_prefix("header ")?).map(str::as_bytes),
    };
    bytes.map(<[u8]>::to_vec)
}

/// Text as text, other bytes in hexadecimal digits.
fn show(bytes: Option<&[u8]>) -> String {
    let Some(bytes) = bytes else { return "nothing".to_owned() };
    match std::str::from_utf8(bytes) {
        Ok(text) => format!("{text:?}"),
        Err(_) => bytes.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}")),
    }
}

async fn read(conn: &mut MySqlConnection) -> Result<Vec<Contents>, String> {
    enqueued::all(conn).await.map_err(|error| format!("the enqueued messages could not be read: {error}"))
}
