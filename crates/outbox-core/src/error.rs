use std::time::Duration;

use uuid::Uuid;

/// Any error: why an event could not be encoded.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a message was not enqueued. Nothing was written, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// The connection has no open transaction, so the message would not commit or roll back with the business row.
    /// Where raw SQL opened one, the server has ended it, as in [`EnqueueError::TransactionEnded`].
    #[error(
        "the connection is not in a transaction: call `begin()` and pass `&mut tx`; if raw SQL opened one, the server \
         has ended it: run the whole transaction again"
    )]
    NotInTransaction,
    /// The server has already ended the transaction (a deadlock or a DDL statement before this call).
    /// The business rows written before are rolled back or committed; roll back and start again.
    #[error(
        "the server has already ended this transaction (after a deadlock, a lock wait time-out with \
         rollback, or a DDL statement): roll back and run the whole transaction again"
    )]
    TransactionEnded,
    /// The message is larger than the server's `max_allowed_packet`.
    #[error(
        "the message has {size} bytes as the database gets it, and one packet has room for {limit}: store the large \
         part elsewhere and send a reference, or raise the server's `max_allowed_packet` (connections that are open \
         keep the old one) and the broker's own limit"
    )]
    AbovePacket {
        /// Bytes of key, payload and headers, these as JSON.
        size: usize,
        /// The room of a packet, in bytes.
        limit: usize,
    },
    /// Key, headers and payload together are larger than the limit of [`crate::Outbox::max_message_bytes`].
    #[error(
        "the message has {size} bytes, the limit is {limit}: store the large part elsewhere and send a reference, or \
         raise `Outbox::max_message_bytes` and the broker's own limit"
    )]
    TooLarge {
        /// Bytes of key, headers and payload.
        size: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// A field has a value that no broker would take.
    #[error(transparent)]
    Invalid(#[from] InvalidMessage),
    /// The event could not be encoded: the error of its [`crate::Event::payload`].
    #[error("the event could not be encoded")]
    Encode(#[source] BoxError),
    /// A message with this id exists. The transaction is still usable; with several messages at once, none of
    /// them was written.
    #[error("a message with the id {0} exists already: it was enqueued before, or the id was chosen twice")]
    Duplicate(Uuid),
    /// The oldest message has been waiting for too long: see [`crate::Outbox::max_backlog_age`]. The transaction is
    /// still usable.
    #[error(
        "a message has been waiting for {age:?}, the limit is {limit:?}: is a relay running, and is the broker there?"
    )]
    Backlog {
        /// How long the oldest due message has been waiting.
        age: Duration,
        /// The limit that it exceeds.
        limit: Duration,
    },
    /// The database refused the call, or the connection was lost. The transaction must be rolled back.
    #[error("the database did not take the message: roll the transaction back")]
    Database(#[from] sqlx::Error),
}

impl EnqueueError {
    /// The kind of error in one word, for metrics and logs: `not_in_transaction`, `transaction_ended`, `too_large`,
    /// `invalid`, `encode`, `duplicate`, `backlog` or `database`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotInTransaction => "not_in_transaction",
            Self::TransactionEnded => "transaction_ended",
            Self::AbovePacket { .. } | Self::TooLarge { .. } => "too_large",
            Self::Invalid(_) => "invalid",
            Self::Encode(_) => "encode",
            Self::Duplicate(_) => "duplicate",
            Self::Backlog { .. } => "backlog",
            Self::Database(_) => "database",
        }
    }
}

/// A field that no broker would take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct InvalidMessage {
    pub(crate) field: &'static str,
    pub(crate) problem: String,
}

impl InvalidMessage {
    pub(crate) fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }

    /// The field at fault: `topic`, `key`, `event type`, `content type`, `header name`, `headers`, `delay` or `expiry`.
    #[must_use]
    pub fn field(&self) -> &'static str {
        self.field
    }
}
