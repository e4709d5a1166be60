use outbox_core::InboxError;

use crate::BoxError;

/// Why a consumer could not start, or had to end. A passing failure (a broker or a database that is down) is no reason.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumerError {
    /// The consumer's name cannot be stored.
    #[error(transparent)]
    Name(#[from] InboxError),
    /// The Kafka consumer was given no topic.
    #[error("no topic: call `.topic(\"…\")`")]
    NoTopic,
    /// The configuration cannot be used, or the broker's client has ended for good.
    #[error("{0}")]
    Client(#[source] BoxError),
    /// A bug of this library.
    #[error("a task of the consumer has ended: {0}")]
    Internal(String),
}
