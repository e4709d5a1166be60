use std::time::Duration;

use crate::{BoxError, EnqueueError, Message};

/// A type of event that a service sends. Derive it (feature `derive`):
///
/// ```
/// # #[cfg(all(feature = "derive", feature = "json"))] {
/// use outbox_core::Event;
///
/// #[derive(serde::Serialize, Event)]
/// #[event(topic = "orders", type = "order.placed.v1")]
/// struct OrderPlaced {
///     #[event(key)]
///     order: u64,
///     cents: u64,
/// }
///
/// let event = OrderPlaced { order: 7, cents: 995 };
/// assert_eq!(event.key(), Some(b"7".to_vec()));
/// assert_eq!(event.payload().unwrap(), br#"{"order":7,"cents":995}"#);
/// # }
/// ```
///
/// or write it by hand:
///
/// ```
/// # use outbox_core::{BoxError, Event};
/// struct Ping;
///
/// impl Event for Ping {
///     const TYPE: &'static str = "ping";
///     const TOPIC: &'static str = "pings";
///     const CONTENT_TYPE: &'static str = "text/plain";
///     fn key(&self) -> Option<Vec<u8>> { None }
///     fn payload(&self) -> Result<Vec<u8>, BoxError> { Ok(b"ping".to_vec()) }
/// }
/// ```
pub trait Event {
    /// The kind of event, for example `order.placed.v1`. At most 255 bytes.
    const TYPE: &'static str;
    /// The topic that it is sent to.
    const TOPIC: &'static str;
    /// The media type of the payload, at most 255 bytes.
    const CONTENT_TYPE: &'static str = "application/json";

    /// Whether each event gets the next number of its key; see [`Message::sequenced`].
    const SEQUENCED: bool = false;

    /// The key whose messages stay in order: most often the id of the aggregate. At most 1,024 bytes.
    fn key(&self) -> Option<Vec<u8>>;

    /// The event as bytes. JSON is `outbox_core::to_json(self)`.
    fn payload(&self) -> Result<Vec<u8>, BoxError>;

    /// The lane, 0 unless the event needs one of its own.
    fn lane(&self) -> u16 {
        0
    }

    /// The shortest time from the enqueue to the publish; see [`Message::delay`].
    fn delay(&self) -> Option<Duration> {
        None
    }
}

/// The value as JSON.
#[cfg(feature = "json")]
pub fn to_json<T: serde_core::Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, BoxError> {
    Ok(serde_json::to_vec(value)?)
}

/// The result of the function of `#[event(encode = function)]`: bytes, or a `Result` of bytes.
pub trait IntoPayload {
    /// The bytes, or the error.
    fn into_payload(self) -> Result<Vec<u8>, BoxError>;
}

impl IntoPayload for Vec<u8> {
    fn into_payload(self) -> Result<Vec<u8>, BoxError> {
        Ok(self)
    }
}

impl<E: Into<BoxError>> IntoPayload for Result<Vec<u8>, E> {
    fn into_payload(self) -> Result<Vec<u8>, BoxError> {
        self.map_err(Into::into)
    }
}

/// An input of the enqueue: a [`Message`], or a reference to an [`Event`].
pub trait IntoMessage {
    /// The message to write.
    fn into_message(self) -> Result<Message, EnqueueError>;
}

impl IntoMessage for Message {
    fn into_message(self) -> Result<Message, EnqueueError> {
        Ok(self)
    }
}

impl<E: Event> IntoMessage for &E {
    fn into_message(self) -> Result<Message, EnqueueError> {
        let payload = self.payload().map_err(EnqueueError::Encode)?;
        let message = Message::new(E::TOPIC, payload).event_type(E::TYPE).content_type(E::CONTENT_TYPE);
        let mut message = message.lane(self.lane());
        message.contents.key = self.key();
        message.sequenced = E::SEQUENCED;
        Ok(match self.delay() {
            Some(delay) => message.delay(delay),
            None => message,
        })
    }
}
