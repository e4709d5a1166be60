use std::collections::HashSet;

use sqlx::{Connection as _, MySqlConnection};
use uuid::Uuid;

use crate::{EnqueueError, IntoMessage, Message, store};

/// Data of one INSERT, in bytes: far below the smallest `max_allowed_packet` in use (16 MiB on MariaDB, 64 MiB on MySQL).
const CHUNK_BYTES: usize = 512 * 1024;
/// Bytes of a packet that are not key, headers or payload of the message.
const PACKET_OVERHEAD: usize = 16 * 1024;

/// The service's end of the outbox: writes messages in the service's own transaction.
///
/// It holds nothing but limits; keep one, or make one where it is needed.
///
/// ```no_run
/// # use outbox_core::{EnqueueError, Message, Outbox, sqlx::{self, Connection, MySqlPool}};
/// # async fn place(pool: MySqlPool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// sqlx::query("INSERT INTO orders (id) VALUES (7)").execute(&mut *tx).await?;
/// Outbox::new().enqueue(&mut tx, Message::new("orders", "{}").key("7")).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// A pool would write outside the transaction of the business row, so it does not compile:
///
/// ```compile_fail
/// # use outbox_core::{EnqueueError, Message, Outbox, sqlx::{self, Connection, MySqlPool}};
/// # async fn place(pool: MySqlPool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// sqlx::query("INSERT INTO orders (id) VALUES (7)").execute(&mut *tx).await?;
/// Outbox::new().enqueue(&pool, Message::new("orders", "{}").key("7")).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Outbox {
    max_message_bytes: usize,
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Outbox {
    /// An outbox with the default limits.
    #[must_use]
    pub fn new() -> Self {
        // Kafka's default max.message.bytes is 1,048,588 with everything around the record; this leaves room for that.
        Self { max_message_bytes: 1_000_000 }
    }

    /// The largest message, in bytes of key, headers and payload. 1,000,000 by default, which Kafka takes by default.
    /// Raise the broker's limit first: a message that it does not take ends as dead.
    #[must_use]
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Writes a message in the open transaction of `conn`: `outbox.enqueue(&mut tx, &event)`. It is sent if and only if the
    /// transaction commits. Returns the message id. Three round trips.
    ///
    /// After an error nothing of the message is written. After [`EnqueueError::Database`] and
    /// [`EnqueueError::TransactionEnded`] roll back; after the others the transaction is still usable.
    pub async fn enqueue(&self, conn: &mut MySqlConnection, message: impl IntoMessage) -> Result<Uuid, EnqueueError> {
        in_transaction(conn)?;
        self.enqueue_unchecked(conn, message).await
    }

    /// [`Outbox::enqueue`] for a transaction that was opened by raw SQL, of which sqlx does not know. The server is still asked
    /// whether there is one.
    pub async fn enqueue_unchecked(
        &self,
        conn: &mut MySqlConnection,
        message: impl IntoMessage,
    ) -> Result<Uuid, EnqueueError> {
        let message = message.into_message()?;
        let id = message.id();
        self.write(conn, vec![message]).await?;
        Ok(id)
    }

    /// Writes many messages, in this order, in few round trips: all or none, like [`Outbox::enqueue`].
    pub async fn enqueue_all<M: IntoMessage>(
        &self,
        conn: &mut MySqlConnection,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Vec<Uuid>, EnqueueError> {
        in_transaction(conn)?;
        let messages = messages.into_iter().map(M::into_message).collect::<Result<Vec<_>, _>>()?;
        let ids = messages.iter().map(Message::id).collect();
        self.write(conn, messages).await?;
        Ok(ids)
    }

    async fn write(&self, conn: &mut MySqlConnection, messages: Vec<Message>) -> Result<(), EnqueueError> {
        let messages = self.check(messages)?;
        if !store::enqueue::savepoint(conn).await? {
            return Err(EnqueueError::TransactionEnded);
        }
        let written = insert_all(conn, &messages).await;
        if written.is_err() {
            // The first error is the one to tell; where this one fails too, the connection is lost, and with it the transaction.
            store::enqueue::undo(conn).await.ok();
        }
        written
    }

    fn check(&self, messages: Vec<Message>) -> Result<Vec<(Message, Option<String>)>, EnqueueError> {
        let mut ids = HashSet::new();
        let check_one = |message: Message| {
            message.validate()?;
            let (size, limit) = (message.size(), self.max_message_bytes);
            if size > limit {
                return Err(EnqueueError::TooLarge { size, limit });
            }
            if !ids.insert(message.id()) {
                return Err(EnqueueError::Duplicate(message.id()));
            }
            let headers = message.headers_json()?;
            Ok((message, headers))
        };
        messages.into_iter().map(check_one).collect()
    }
}

fn in_transaction(conn: &MySqlConnection) -> Result<(), EnqueueError> {
    if conn.is_in_transaction() { Ok(()) } else { Err(EnqueueError::NotInTransaction) }
}

async fn insert_all(
    conn: &mut MySqlConnection,
    mut messages: &[(Message, Option<String>)],
) -> Result<(), EnqueueError> {
    while !messages.is_empty() {
        let size = store::enqueue::chunk(messages, CHUNK_BYTES);
        let (chunk, rest) = messages.split_at(size);
        check_packet(conn, chunk).await?;
        if let Err(error) = store::enqueue::insert_messages(conn, chunk).await {
            return Err(explain(conn, chunk, error).await);
        }
        messages = rest;
    }
    Ok(())
}

/// A chunk larger than [`CHUNK_BYTES`] is one large message: it is the only case that may not fit into a packet.
async fn check_packet(conn: &mut MySqlConnection, chunk: &[(Message, Option<String>)]) -> Result<(), EnqueueError> {
    let size: usize = chunk.iter().map(|(message, _)| message.size()).sum();
    if size <= CHUNK_BYTES {
        return Ok(());
    }
    let packet = store::enqueue::max_allowed_packet(conn).await?;
    let limit = usize::try_from(packet).unwrap_or(usize::MAX).saturating_sub(PACKET_OVERHEAD);
    if size > limit { Err(EnqueueError::TooLarge { size, limit }) } else { Ok(()) }
}

/// Finds out whether an error is a message id that exists already, and which.
async fn explain(conn: &mut MySqlConnection, chunk: &[(Message, Option<String>)], error: sqlx::Error) -> EnqueueError {
    let duplicate = error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation);
    if duplicate {
        for (message, _) in chunk {
            if matches!(store::enqueue::exists(conn, message).await, Ok(true)) {
                return EnqueueError::Duplicate(message.id());
            }
        }
    }
    error.into()
}
