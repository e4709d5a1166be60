use std::fmt;

/// The contents of a message, from the enqueue to the consumer.
///
/// Its `Debug` shows neither key nor headers nor payload, so that it can be logged.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// The topic that the service named. At a consumer: Kafka's topic or RabbitMQ's routing key.
    pub topic: String,
    /// The message key: orders the messages of a topic.
    pub key: Option<Vec<u8>>,
    /// The kind of event.
    pub event_type: Option<String>,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// The headers, in the order in which the service added them.
    pub headers: Vec<(String, String)>,
    /// The payload; `None` for a tombstone.
    pub payload: Option<Vec<u8>>,
}

impl Contents {
    /// The value of a header: the first of this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topic, event_type, content_type, payload, .. } = self;
        let bytes = payload.as_ref().map(Vec::len);
        write!(f, "{event_type:?} of {topic}, payload {content_type:?} of {bytes:?} bytes")
    }
}
