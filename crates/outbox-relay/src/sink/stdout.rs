//! Standard output: one JSON line per message.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Instant,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Feed, KeyOrder, Outcome, Outgoing, PublishError, Receipt, Sink, broker::Broker};
use crate::{
    error::RunError,
    settings::{SinkConfig, sink_type::SinkType},
};

/// One JSON line per message on standard output, for trying out and for piping into other programs.
///
/// Keys and payloads in UTF-8 are text (`key`, `payload`). Others are hexadecimal digits under another name (`key_hex`,
/// `payload_hex`). A tombstone has `"payload": null`, a message without key `"key": null`. `headers` is a list of
/// pairs, in order. A message counts as sent when its line is written and flushed.
pub struct Stdout(Mutex<Box<dyn Write + Send>>);

/// The type of sink.
pub(crate) const TYPE: SinkType =
    SinkType { word: "stdout", keys: &[], example: None, read: |_| SinkConfig::new(OwnOutput) };

/// The settings: there are none. Its reader may stop, so it has a thread of its own.
#[derive(Debug)]
pub struct OwnOutput;

impl Broker for OwnOutput {
    fn feed(&self, name: &str) -> Result<Feed, RunError> {
        Ok(Feed::new(name, Arc::new(Stdout::new()), 1, 1000))
    }
}

impl Stdout {
    /// Writes to the process's standard output.
    #[must_use]
    pub fn new() -> Self {
        Self::to(io::stdout())
    }

    /// Writes the same lines to another place.
    #[must_use]
    pub fn to(out: impl Write + Send + 'static) -> Self {
        Self(Mutex::new(Box::new(out)))
    }

    fn write(&self, lines: &str) -> io::Result<()> {
        let mut out = self.0.lock();
        out.write_all(lines.as_bytes())?;
        out.flush()
    }
}

impl Default for Stdout {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Sink for Stdout {
    fn key_order(&self, _message: &Outgoing) -> KeyOrder {
        KeyOrder::Pipelined
    }

    async fn publish(&self, batch: &[Outgoing], deadline: Instant) -> Vec<Outcome> {
        if Instant::now() >= deadline {
            return vec![Err(PublishError::Unavailable("no time left".to_owned())); batch.len()];
        }
        let lines: String = batch.iter().map(line).collect();
        match self.write(&lines) {
            Ok(()) => batch.iter().map(|_| Ok(Receipt::new("stdout"))).collect(),
            // Some lines may have gone out before the one that failed.
            Err(error) => vec![Err(PublishError::Unconfirmed(error.to_string())); batch.len()],
        }
    }

    async fn check(&self, _deadline: Instant) -> Result<(), PublishError> {
        self.write("").map_err(|error| PublishError::Unavailable(error.to_string()))
    }

    async fn close(&self) {}
}

/// Returns the line of a message, with its line break.
fn line(message: &Outgoing) -> String {
    let mut line = serde_json::Map::new();
    line.insert("id".to_owned(), json!(message.message_id.to_string()));
    line.insert("topic".to_owned(), json!(&*message.contents.topic));
    line.insert("target".to_owned(), json!(message.destination.target));
    insert_bytes(&mut line, "key", message.contents.key.as_deref());
    line.insert("type".to_owned(), json!(message.contents.event_type));
    line.insert("content_type".to_owned(), json!(message.contents.content_type));
    line.insert("headers".to_owned(), json!(message.contents.headers));
    line.insert("created_at_micros".to_owned(), json!(message.created_at_micros));
    insert_bytes(&mut line, "payload", message.contents.payload.as_deref());
    format!("{}\n", Value::Object(line))
}

fn insert_bytes(line: &mut serde_json::Map<String, Value>, name: &str, bytes: Option<&[u8]>) {
    let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
    match (bytes, text) {
        (Some(bytes), None) => line.insert(format!("{name}_hex"), json!(hex(bytes))),
        (_, text) => line.insert(name.to_owned(), json!(text)),
    };
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}
