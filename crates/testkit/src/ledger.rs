//! The ledger of the producers: every message to be enqueued, and the outcome of its transaction.
//!
//! Its fields are those of `outbox_core::Contents`, in types of its own: the judge must not share a mistake of the
//! product.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use outbox_core::{Message, SEQUENCE_HEADER};
use serde::{Deserialize, Deserializer, de::Error as _};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// A message before it is enqueued: all parts that must arrive.
#[derive(Debug, Clone)]
pub struct Draft {
    /// The message id.
    pub id: Uuid,
    /// The topic.
    pub topic: String,
    /// The message key.
    pub key: Option<Vec<u8>>,
    /// The place among the committed messages of its key, from 1 on without gaps; `None` if no order is promised.
    pub sequence: Option<u64>,
    /// Whether the library numbers it: the arrival must have the number in the draft's header.
    pub sequenced: bool,
    /// The event type.
    pub event_type: Option<String>,
    /// The content type.
    pub content_type: Option<String>,
    /// The headers.
    pub headers: Vec<(String, String)>,
    /// The payload; `None` for a tombstone.
    pub payload: Option<Vec<u8>>,
}

impl Draft {
    /// A message with this payload and nothing else.
    #[must_use]
    pub fn new(topic: &str, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            id: Uuid::now_v7(),
            topic: topic.to_owned(),
            key: None,
            sequence: None,
            sequenced: false,
            event_type: None,
            content_type: None,
            headers: Vec::new(),
            payload: Some(payload.into()),
        }
    }

    /// Without payload.
    #[must_use]
    pub fn tombstone(mut self) -> Self {
        self.payload = None;
        self
    }

    /// With a key, and its place among the messages of this key, from 1 on.
    #[must_use]
    pub fn key(mut self, key: impl Into<Vec<u8>>, sequence: u64) -> Self {
        self.key = Some(key.into());
        self.sequence = Some(sequence);
        self
    }

    /// Also numbered by the library.
    #[must_use]
    pub fn sequenced(mut self) -> Self {
        self.sequenced = true;
        let number = self.sequence.unwrap_or_default().to_string();
        self.header(SEQUENCE_HEADER, &number)
    }

    /// With a key, but in no order: for delayed messages, and for those that are meant to become dead.
    #[must_use]
    pub fn unordered_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// With an event type and a content type.
    #[must_use]
    pub fn described(mut self, event_type: &str, content_type: &str) -> Self {
        self.event_type = Some(event_type.to_owned());
        self.content_type = Some(content_type.to_owned());
        self
    }

    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The message to enqueue.
    #[must_use]
    pub fn message(&self) -> Message {
        let message = match &self.payload {
            Some(payload) => Message::new(&self.topic, payload.clone()),
            None => Message::tombstone(&self.topic),
        };
        let message = if self.sequenced { message.sequenced() } else { message };
        let own = self.headers.iter().filter(|(name, _)| !self.sequenced || name != SEQUENCE_HEADER);
        let message = own.fold(message.message_id(self.id), |message, (name, value)| message.header(name, value));
        let message = self.key.iter().fold(message, |message, key| message.key(key.clone()));
        let message = self.event_type.iter().fold(message, Message::event_type);
        self.content_type.iter().fold(message, Message::content_type)
    }

    fn contents(&self) -> Contents {
        Contents {
            topic: self.topic.clone(),
            key: self.key.clone(),
            event_type: self.event_type.clone(),
            content_type: self.content_type.clone(),
            headers: self.headers.clone(),
            payload: self.payload.as_deref().map(Fingerprint::of),
        }
        .sorted()
    }
}

/// The parts of a message, for comparison between both ends.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Contents {
    /// The topic: a Kafka topic, or a RabbitMQ routing key.
    pub topic: String,
    /// The message key.
    pub key: Option<Vec<u8>>,
    /// The event type.
    pub event_type: Option<String>,
    /// The content type.
    pub content_type: Option<String>,
    /// The headers, by name: AMQP has a table where the message has a list.
    pub headers: Vec<(String, String)>,
    /// The payload.
    pub payload: Option<Fingerprint>,
}

impl Contents {
    /// With the headers in the order of their names.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        self.headers.sort();
        self
    }

    /// The names of the parts in which two messages differ.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let parts = [
            ("topic", self.topic == other.topic),
            ("key", self.key == other.key),
            ("event type", self.event_type == other.event_type),
            ("content type", self.content_type == other.content_type),
            ("headers", self.headers == other.headers),
            ("payload", self.payload == other.payload),
        ];
        parts.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect()
    }
}

/// Length and SHA-256 of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Fingerprint {
    /// The number of bytes.
    pub length: usize,
    /// SHA-256.
    pub sha256: [u8; 32],
}

impl Fingerprint {
    /// The fingerprint of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self { length: bytes.len(), sha256: Sha256::digest(bytes).into() }
    }
}

/// The outcome of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Outcome {
    /// COMMIT was confirmed: its messages must arrive.
    Committed,
    /// It was rolled back, or COMMIT was never sent: its messages must not exist.
    RolledBack,
    /// COMMIT was sent and not answered: all of it happened, or nothing.
    Unknown,
}

/// A message in the ledger.
#[derive(Debug, Clone, Deserialize)]
pub struct Entry {
    /// The message id.
    #[serde(deserialize_with = "uuid")]
    pub id: Uuid,
    /// The place among the messages of its key; `None` if no order is promised.
    pub sequence: Option<u64>,
    /// What must arrive.
    pub contents: Contents,
    /// The outcome of its transaction.
    pub outcome: Outcome,
}

/// The ledger. Clones share its entries.
#[derive(Debug, Clone, Default)]
pub struct Ledger(Arc<Mutex<Vec<Entry>>>);

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records messages before their transaction commits. Their outcome is unknown until it is set.
    pub fn open(&self, drafts: &[Draft]) -> Opened {
        let entry = |draft: &Draft| Entry {
            id: draft.id,
            sequence: draft.sequence,
            contents: draft.contents(),
            outcome: Outcome::Unknown,
        };
        let mut entries = self.lock();
        let first = entries.len();
        entries.extend(drafts.iter().map(entry));
        Opened { ledger: self.clone(), first, count: drafts.len() }
    }

    /// All entries.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.lock().clone()
    }

    /// Changes the entries: for a restore that removes messages, or renumbers them.
    pub fn change(&self, change: impl FnOnce(&mut Vec<Entry>)) {
        change(&mut self.lock());
    }

    /// The number of messages with this outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        self.lock().iter().filter(|entry| entry.outcome == outcome).count()
    }

    /// Adds the ledger of another process: a JSON list of entries. Returns the number of committed ones among them.
    ///
    /// # Errors
    /// When the text is no such list.
    pub fn read(&self, json: &str) -> Result<usize> {
        let entries: Vec<Entry> = serde_json::from_str(json)?;
        let committed = entries.iter().filter(|entry| entry.outcome == Outcome::Committed).count();
        self.lock().extend(entries);
        Ok(committed)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn uuid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Uuid, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

/// The entries of one transaction that has not ended.
#[derive(Debug)]
#[must_use = "say what became of the transaction"]
pub struct Opened {
    ledger: Ledger,
    first: usize,
    count: usize,
}

impl Opened {
    /// COMMIT was confirmed.
    pub fn committed(self) {
        self.set(Outcome::Committed);
    }

    /// It was rolled back, or COMMIT was never sent.
    pub fn rolled_back(self) {
        self.set(Outcome::RolledBack);
    }

    /// COMMIT was sent and not answered.
    pub fn unknown(self) {
        self.set(Outcome::Unknown);
    }

    fn set(&self, outcome: Outcome) {
        self.ledger.lock().iter_mut().skip(self.first).take(self.count).for_each(|entry| entry.outcome = outcome);
    }
}
