//! The relay's view of a broker: two small traits, and the ways in which a publish can fail.

mod apart;
#[doc(hidden)]
pub mod arrivals;
#[doc(hidden)]
pub mod broker;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod feed;
pub mod http;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod null;
pub(crate) mod progress;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
pub mod stdout;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use outbox_core::Contents;
use uuid::Uuid;

pub use self::feed::Feed;
use self::progress::Progress;
pub use crate::destination::Destination;

/// The time beyond its deadline after which a sink's call is given up.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// A message on its way to a sink.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Outgoing {
    /// The id under which consumers know the message, the same over retries and replays.
    pub message_id: Uuid,
    /// Orders messages: those with the same hash go out one after the other. 0 means no order.
    pub key_hash: u64,
    /// The message's contents, in the envelope of its route.
    pub contents: Contents,
    /// The time of its enqueue: microseconds since 1970, by the database's clock.
    pub created_at_micros: i64,
    /// The destination that its route gives it.
    pub destination: Arc<Destination>,
    /// Takes the confirm of the message before its batch ends, if the publisher wants to know.
    pub(crate) progress: Option<Progress>,
}

/// A broker's confirmation of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The place of the message: `orders/3@184` on Kafka, `exchange/routing key` on RabbitMQ. At most 255 bytes of
    /// ASCII.
    pub place: String,
    /// Whether the sink sent the message more than once, so that it may have arrived more than once.
    pub resent: bool,
}

impl Receipt {
    /// Creates a receipt that fits its column: a longer place is cut, and other than ASCII becomes a question mark.
    #[must_use]
    pub fn new(place: &str) -> Self {
        let place = place.chars().take(255).map(|c| if c.is_ascii() { c } else { '?' }).collect();
        Self { place, resent: false }
    }
}

/// The reason why a message was not published. The class decides the next step; in doubt it is
/// [`PublishError::Unconfirmed`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The broker cannot take anything now (down, blocked, no leader, login refused). The message surely did not
    /// arrive, and is not the cause. It goes back without a spent attempt, and the whole sink backs off.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The message was not handed over, because it must not overtake an earlier message that failed or is in flight. It
    /// surely did not arrive, and waits for a second without a spent attempt; the sink goes on.
    #[error("turned away: {0}")]
    TurnedAway(String),
    /// The destination takes nothing: it does not exist, nothing is bound to it, or the relay may not write to it. That
    /// may pass. The message surely did not arrive, and is not the cause. It waits for `relay.unroutable_grace` without
    /// a spent attempt, then counts as rejected.
    #[error("{detail}")]
    Unroutable {
        /// A short code for metrics and `outbox_dead`: `unroutable` or `refused`.
        reason: &'static str,
        /// The broker's words, without payload, key or header values.
        detail: String,
    },
    /// The broker will never take this message (too large, invalid).
    #[error("{detail}")]
    Rejected {
        /// A short code for metrics and `outbox_dead`: `too_large`, `invalid`, `refused`, or a word of the sink's own.
        /// ASCII, at most 32 characters: the rest is cut.
        reason: &'static str,
        /// The broker's words, without payload, key or header values.
        detail: String,
    },
    /// The message may have arrived (time-out, connection lost). It is sent again, which may make a duplicate.
    #[error("{0}")]
    Unconfirmed(String),
}

impl PublishError {
    /// Returns a short code for metrics: the class, or the reason of a refusal.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "unavailable",
            Self::TurnedAway(_) => "turned_away",
            Self::Unroutable { reason, .. } | Self::Rejected { reason, .. } => reason,
            Self::Unconfirmed(_) => "unconfirmed",
        }
    }
}

/// The outcome of one message.
pub type Outcome = Result<Receipt, PublishError>;

/// How much of the order per key a sink keeps by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyOrder {
    /// Messages of one key may be handed over one after the other without waiting. The sink confirms a later one only
    /// if it has confirmed the earlier ones (Kafka's idempotent producer within a partition).
    Pipelined,
    /// The same, once the sink has confirmed one message of the key. Until then as [`Self::OneInFlight`], whatever the
    /// settings of the route.
    FirstAlone,
    /// The next message of a key is handed over after the one before is confirmed. A batch never holds a key twice,
    /// unless the route is `pipelined`.
    OneInFlight,
}

/// A connection to a broker. The suite in `conformance` checks an implementation. Its calls may block: a sink of [`Feed::new`] has a
/// thread of its own. A call that blocks delays the other calls of this sink.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Returns how much of the order of this message's key the sink keeps by itself at present.
    fn key_order(&self, message: &Outgoing) -> KeyOrder;

    /// Publishes a batch. Returns exactly one outcome per message, in the batch's order, no later than `deadline`. A
    /// message counts as sent only on the broker's own confirmation of that message.
    ///
    /// Several calls may be in flight. They are first polled in the order in which they were made, and a
    /// [`KeyOrder::Pipelined`] sink hands messages to the broker in that order.
    /// The future may be dropped only when the process ends.
    async fn publish(&self, batch: &[Outgoing], deadline: Instant) -> Vec<Outcome>;

    /// Checks that the broker can be reached and would take messages. Connects if necessary; returns no later than
    /// `deadline`.
    async fn check(&self, deadline: Instant) -> Result<(), PublishError>;

    /// Closes connections after the last publish.
    async fn close(&self);
}
