//! A custom sink in one file: it appends each message to a file, as a line of JSON. README.md describes the lines.
//!
//! Read it in this order. [`Journal::publish`](Sink::publish) returns one outcome per message. `append` separates
//! "surely did not arrive" from "may have arrived".

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::PathBuf,
    time::Instant,
};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use outbox_relay::sink::{KeyOrder, Outcome, Outgoing, PublishError, Receipt, Sink};
use serde_json::{Value, json};

/// Appends each message to a file.
pub struct Journal {
    file: PathBuf,
}

impl Journal {
    /// Creates a sink that appends to this file. The file must exist: a new one would hide that its disk is not
    /// mounted.
    #[must_use]
    pub fn new(file: impl Into<PathBuf>) -> Self {
        Self { file: file.into() }
    }

    fn open(&self) -> Result<File, PublishError> {
        let file = OpenOptions::new().append(true).open(&self.file);
        file.map_err(|error| PublishError::Unavailable(format!("the journal cannot be opened: {error}")))
    }

    fn append(&self, lines: &str) -> Result<(), PublishError> {
        let mut file = self.open()?;
        // Nothing was written before this call. After it any part of the lines may be in the file.
        let written = file.write_all(lines.as_bytes()).and_then(|()| file.sync_data());
        written.map_err(|error: io::Error| PublishError::Unconfirmed(error.to_string()))
    }
}

#[async_trait]
impl Sink for Journal {
    /// Calls are polled in their order, and each one appends before it returns.
    fn key_order(&self, _message: &Outgoing) -> KeyOrder {
        KeyOrder::Pipelined
    }

    async fn publish(&self, batch: &[Outgoing], deadline: Instant) -> Vec<Outcome> {
        if Instant::now() >= deadline {
            return vec![Err(PublishError::Unavailable("no time left".to_owned())); batch.len()];
        }
        // The first line break ends a line that an earlier failure has cut.
        let lines: String = std::iter::once("\n".to_owned()).chain(batch.iter().map(line)).collect();
        match self.append(&lines) {
            Ok(()) => batch.iter().map(|message| Ok(Receipt::new(&message.destination.target))).collect(),
            Err(error) => vec![Err(error); batch.len()],
        }
    }

    async fn check(&self, _deadline: Instant) -> Result<(), PublishError> {
        self.open().map(drop)
    }

    async fn close(&self) {}
}

fn line(message: &Outgoing) -> String {
    let line = json!({
        "id": message.message_id.to_string(),
        "topic": &*message.contents.topic,
        "target": &*message.destination.target,
        "key": message.contents.key.as_deref().map(bytes),
        "type": message.contents.event_type,
        "content_type": message.contents.content_type,
        "headers": message.contents.headers,
        "created_at_micros": message.created_at_micros,
        "payload": message.contents.payload.as_deref().map(bytes),
    });
    format!("{line}\n")
}

/// Returns bytes as text if they are UTF-8, otherwise as base64.
fn bytes(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => json!({ "base64": BASE64.encode(bytes) }),
    }
}
