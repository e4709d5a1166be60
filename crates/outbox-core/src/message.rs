use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use uuid::Uuid;

use crate::{Contents, EPOCH_HEADER, InvalidMessage, SEQUENCE_HEADER, TOPIC_HEADER, key_hash, sequence};

/// Longest topic, in bytes: Kafka's limit for a topic name; RabbitMQ's routing keys take 255.
pub(crate) const MAX_TOPIC: usize = 249;
/// Longest key, in bytes: the width of the column `message_key`.
pub(crate) const MAX_KEY: usize = 1024;
/// Longest event type, content type and header name, in bytes: a short string of AMQP 0-9-1.
pub(crate) const MAX_SHORT: usize = 255;
/// Names and values of all headers together, in bytes: half of RabbitMQ's default `frame_max` (131,072), because
/// AMQP sends all properties of a message in one frame.
pub(crate) const MAX_HEADERS: usize = 65_536;
/// Most headers: each takes six bytes more in that frame.
pub(crate) const MAX_HEADER_COUNT: usize = 10_000;
/// Longest delay and expiry: a hundred years, within the range of `DATETIME`.
const MAX_WAIT: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A message about a business row, enqueued in the transaction of that row.
#[derive(Debug, Clone)]
pub struct Message {
    pub(crate) message_id: Uuid,
    pub(crate) contents: Contents,
    pub(crate) due: Schedule,
    pub(crate) expires: Option<Duration>,
    pub(crate) lane: u16,
    pub(crate) sequenced: bool,
}

/// When a message may be published, by the database's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Schedule {
    Now,
    After(Duration),
    At(SystemTime),
}

impl Schedule {
    /// Microseconds from now, or since 1970: one of the two.
    pub(crate) fn micros(self) -> (Option<i64>, Option<i64>) {
        match self {
            Self::Now => (Some(0), None),
            Self::After(delay) => (Some(crate::store::enqueue::micros(delay)), None),
            Self::At(time) => {
                let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                (None, Some(crate::store::enqueue::micros(since)))
            }
        }
    }
}

impl Message {
    /// A message with these bytes as its payload. The topic has 1 to 249 ASCII letters, digits, `.`, `_` and `-`, and
    /// is neither `.` nor `..`. Nothing is checked here: a field outside its limits is
    /// [`EnqueueError::Invalid`](crate::EnqueueError::Invalid) at the enqueue.
    #[must_use]
    pub fn new(topic: impl Into<String>, payload: impl Into<Vec<u8>>) -> Self {
        Self::with_payload(topic.into(), Some(payload.into()))
    }

    /// A message without payload: on a compacted Kafka topic it deletes its key.
    #[must_use]
    pub fn tombstone(topic: impl Into<String>) -> Self {
        Self::with_payload(topic.into(), None)
    }

    /// A message with this value as JSON. [`EnqueueError::Encode`](crate::EnqueueError::Encode) if the value has no
    /// JSON form, like a map whose keys are lists.
    #[cfg(feature = "json")]
    pub fn json(topic: impl Into<String>, value: &impl serde_core::Serialize) -> Result<Self, crate::EnqueueError> {
        let payload = crate::to_json(value).map_err(crate::EnqueueError::Encode)?;
        Ok(Self::new(topic, payload).content_type("application/json"))
    }

    fn with_payload(topic: String, payload: Option<Vec<u8>>) -> Self {
        Self {
            message_id: Uuid::now_v7(),
            contents: Contents { topic, payload, ..Contents::default() },
            due: Schedule::Now,
            expires: None,
            lane: 0,
            sequenced: false,
        }
    }

    /// Messages of one topic with the same key are published in the order in which they were enqueued. At most 1,024
    /// bytes.
    #[must_use]
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.contents.key = Some(key.into());
        self
    }

    /// The kind of event, at most 255 bytes: the `type` property on RabbitMQ, the header `type` on Kafka.
    #[must_use]
    pub fn event_type(mut self, event_type: impl Into<String>) -> Self {
        self.contents.event_type = Some(event_type.into());
        self
    }

    /// The media type of the payload, at most 255 bytes.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.contents.content_type = Some(content_type.into());
        self
    }

    /// Adds a header. Each name occurs once and has at most 255 bytes. A message has at most 10,000 headers, with at
    /// most 64 KiB of names and values together.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.contents.headers.push((name.into(), value.into()));
        self
    }

    /// Publishes the message only after this time has passed since the enqueue, by the database's clock. It does not
    /// hold back later messages of its key. At most 100 years.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.due = Schedule::After(delay);
        self
    }

    /// Publishes the message at this time at the earliest, within 100 years. It does not hold back later messages of
    /// its key.
    #[must_use]
    pub fn deliver_at(mut self, time: SystemTime) -> Self {
        self.due = Schedule::At(time);
        self
    }

    /// A message that is not published within this time of the enqueue is never published: it becomes dead, with the
    /// reason `expired`. At most 100 years.
    #[must_use]
    pub fn expires_after(mut self, time: Duration) -> Self {
        self.expires = Some(time);
        self
    }

    /// The lane (0 by default). Each lane is claimed separately. The lanes of one relay share its limits of messages in
    /// flight; relays with `relay.lanes` of their own share nothing.
    #[must_use]
    pub fn lane(mut self, lane: u16) -> Self {
        self.lane = lane;
        self
    }

    /// Gives the message the next number of its topic and key, from 1 on and without gaps, in the header
    /// [`crate::SEQUENCE_HEADER`]. A consumer that counts finds messages that are missing, repeated or out of order.
    ///
    /// The enqueue takes the number in its transaction, and locks the key until that ends. So messages of a key are
    /// published in the order of the commits, whatever the service locks before or after. Transactions of one key
    /// follow one another. Enqueue late in the transaction, and lock the business row always before or always after the
    /// enqueue: a mixture leads to deadlocks. The very first message of a key may deadlock, too, if its transaction
    /// rolls back while several others wait. Run the victim's transaction again, as after any deadlock.
    ///
    /// One more round trip for each key. The message needs a key and takes no delay. If some messages of a key are
    /// sequenced, all should be. A message that becomes dead, or expires, leaves a gap that consumers see.
    ///
    /// MariaDB from 11.6.2 on (`innodb_snapshot_isolation`) refuses the enqueue with error 1020, and rolls back, if the
    /// key got a number after a REPEATABLE READ transaction first read. Run the transaction again, or begin such
    /// transactions with READ COMMITTED.
    #[must_use]
    pub fn sequenced(mut self) -> Self {
        self.sequenced = true;
        self
    }

    /// Your own id instead of the generated UUID version 7. Enqueueing the same id twice is an error.
    #[must_use]
    pub fn message_id(mut self, id: Uuid) -> Self {
        self.message_id = id;
        self
    }

    /// The id under which consumers see the message, the same over retries and replays.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.message_id
    }

    /// Bytes of key, headers and payload, limited by [`crate::Outbox::max_message_bytes`]. A header that is only known
    /// in the transaction counts with its largest size.
    #[must_use]
    pub fn size(&self) -> usize {
        self.contents.key.as_ref().map_or(0, Vec::len)
            + self.headers_size()
            + self.contents.payload.as_ref().map_or(0, Vec::len)
    }

    /// Bytes of key, payload and headers as the columns hold them: JSON has quotes and escapes.
    pub(crate) fn stored_size(&self, headers: Option<&str>) -> usize {
        self.size() - self.headers_size() + headers.map_or(0, str::len)
    }

    fn headers_size(&self) -> usize {
        let to_come = if self.sequenced { sequence::HEADER_BYTES } else { 0 };
        self.contents.headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() + to_come
    }

    pub(crate) fn key_hash(&self) -> u64 {
        key_hash(&self.contents.topic, self.contents.key.as_deref())
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidMessage> {
        validate_topic(&self.contents.topic)?;
        if self.contents.key.as_ref().is_some_and(|key| key.len() > MAX_KEY) {
            return Err(InvalidMessage::new("key", format!("is longer than {MAX_KEY} bytes: use a hash of it")));
        }
        validate_short("event type", self.contents.event_type.as_deref())?;
        validate_short("content type", self.contents.content_type.as_deref())?;
        self.validate_headers()?;
        self.validate_sequenced()?;
        let wait = match self.due {
            Schedule::Now => Duration::ZERO,
            Schedule::After(delay) => delay,
            Schedule::At(time) => time.duration_since(SystemTime::now()).unwrap_or_default(),
        };
        if wait > MAX_WAIT {
            return Err(InvalidMessage::new("delay", "is longer than 100 years"));
        }
        if self.expires.is_some_and(|time| time > MAX_WAIT) {
            return Err(InvalidMessage::new("expiry", "is longer than 100 years"));
        }
        Ok(())
    }

    fn validate_sequenced(&self) -> Result<(), InvalidMessage> {
        if !self.sequenced {
            return Ok(());
        }
        if self.contents.key.is_none() {
            return Err(InvalidMessage::new("key", "is missing: a sequence counts the messages of a key"));
        }
        if self.due != Schedule::Now {
            let problem = "does not go with a sequence: later messages of the key would overtake this one";
            return Err(InvalidMessage::new("delay", problem));
        }
        if let Some((name, _)) =
            self.contents.headers.iter().find(|(name, _)| [SEQUENCE_HEADER, EPOCH_HEADER].contains(&&**name))
        {
            let problem = format!("`{name}` is reserved in a sequenced message");
            return Err(InvalidMessage::new("header name", problem));
        }
        Ok(())
    }

    fn validate_headers(&self) -> Result<(), InvalidMessage> {
        let size = self.headers_size();
        if size > MAX_HEADERS {
            return Err(InvalidMessage::new(
                "headers",
                format!("have {size} bytes together, the limit is {MAX_HEADERS}"),
            ));
        }
        let count = self.contents.headers.len();
        if count > MAX_HEADER_COUNT {
            return Err(InvalidMessage::new("headers", format!("are {count}, the limit is {MAX_HEADER_COUNT}")));
        }
        let mut seen = HashSet::new();
        for (name, value) in &self.contents.headers {
            validate_short("header name", Some(name))?;
            if name.is_empty() {
                return Err(InvalidMessage::new("header name", "is empty"));
            }
            if RESERVED_HEADERS.contains(&name.as_str()) {
                return Err(InvalidMessage::new("header name", format!("`{name}` is reserved: the relay sets it")));
            }
            if value.contains('\0') {
                return Err(InvalidMessage::new("headers", format!("the value of `{name}` contains a NUL character")));
            }
            if !seen.insert(name) {
                return Err(InvalidMessage::new("header name", format!("`{name}` is given twice")));
            }
        }
        Ok(())
    }
}

/// Headers that the relay itself writes, on Kafka and on RabbitMQ.
pub(crate) const RESERVED_HEADERS: [&str; 6] =
    ["id", "type", "content-type", TOPIC_HEADER, "x-message-key", "x-tombstone"];

fn validate_topic(topic: &str) -> Result<(), InvalidMessage> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if topic.is_empty() || topic == "." || topic == ".." || !topic.chars().all(legal) {
        return Err(InvalidMessage::new(
            "topic",
            format!("{topic:?} is not a topic name: use letters, digits, `.`, `_` and `-`"),
        ));
    }
    if topic.len() > MAX_TOPIC {
        return Err(InvalidMessage::new("topic", format!("is longer than {MAX_TOPIC} bytes")));
    }
    Ok(())
}

fn validate_short(field: &'static str, text: Option<&str>) -> Result<(), InvalidMessage> {
    let Some(text) = text else { return Ok(()) };
    if text.len() > MAX_SHORT {
        return Err(InvalidMessage::new(field, format!("is longer than {MAX_SHORT} bytes")));
    }
    if text.chars().any(char::is_control) {
        return Err(InvalidMessage::new(field, format!("{text:?} contains a control character")));
    }
    Ok(())
}
