mod admission;
mod purge;
mod sequence;
mod window;

use sqlx::{Connection as _, MySqlConnection};
use uuid::Uuid;

pub use self::{
    admission::InboxTransaction,
    purge::{InboxPurge, Purged},
    sequence::{Sequence, SequenceNumber},
    window::{RETENTION, WindowTooShort, check_window},
};
use crate::{Statement, store};

/// A consumer's memory of the messages that it has processed, so that a redelivered message changes nothing.
#[derive(Debug, Clone)]
pub struct Inbox {
    consumer: String,
}

/// Whether a message is new to this consumer. [`Inbox::admit`] returns the transaction in it. With [`Inbox::claim`] the
/// caller already has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a new message must be processed, and a duplicate only acknowledged"]
pub enum Claim<T = ()> {
    /// The first time: do the work in the same transaction, commit, then acknowledge.
    First(T),
    /// It was processed before: acknowledge, change nothing.
    Duplicate,
}

/// Why a message could not be claimed. Nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// The connection has no open transaction, so the claim would not commit or roll back with the work.
    #[error("the connection is not in a transaction: call `begin()` and pass `&mut tx`")]
    NotInTransaction,
    /// The server has ended the transaction before its commit, most often by a deadlock whose error the work swallowed.
    /// The later writes of the work were committed without the mark, and will be done again. Pass database errors on.
    #[error("the server has ended the transaction before the commit: pass errors of the database on, and use no DDL")]
    TransactionEnded,
    /// The consumer's name cannot be stored.
    #[error("the consumer name must have 1 to 100 printable ASCII characters")]
    InvalidConsumer,
    /// The database refused the call, or the connection was lost. The transaction must be rolled back.
    #[error("the database did not take the inbox row: roll the transaction back")]
    Database(#[from] sqlx::Error),
}

impl Inbox {
    /// The inbox of this consumer. All processes of one consumer share a name: 1 to 100 printable ASCII characters.
    pub fn new(consumer: impl Into<String>) -> Result<Self, InboxError> {
        let consumer = consumer.into();
        let printable = !consumer.is_empty() && consumer.bytes().all(|byte| byte.is_ascii_graphic());
        if printable && consumer.len() <= 100 { Ok(Self { consumer }) } else { Err(InboxError::InvalidConsumer) }
    }

    /// The consumer's name.
    #[must_use]
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// Claims a message in the consumer's own transaction. If another transaction is processing the same message, the
    /// call waits for its outcome: `Duplicate` if it commits, `First` if it rolls back.
    ///
    /// Claim first in the transaction, then do the work, then commit, and acknowledge last.
    ///
    /// Without an open transaction the error is [`InboxError::NotInTransaction`]. A wait of more than
    /// `innodb_lock_wait_timeout` is an [`InboxError::Database`]. After that error roll back and let the message come
    /// again.
    pub async fn claim(&self, conn: &mut MySqlConnection, message_id: Uuid) -> Result<Claim, InboxError> {
        if !conn.is_in_transaction() {
            return Err(InboxError::NotInTransaction);
        }
        let first = store::inbox::insert(conn, &self.consumer, message_id).await?;
        Ok(if first { Claim::First(()) } else { Claim::Duplicate })
    }

    /// [`Inbox::claim`] as plain SQL, for a consumer that has its transaction in another library. Run it first in the
    /// transaction of the work. If it succeeds, the message is new. The server's error 1062 means that it was processed
    /// before: roll back and acknowledge. After any other error roll back, and let the message come again.
    #[must_use]
    pub fn prepare(&self, message_id: Uuid) -> Statement {
        store::inbox::statement(&self.consumer, message_id)
    }
}
