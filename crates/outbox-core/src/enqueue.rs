use std::collections::HashSet;

use sqlx::{Connection as _, MySqlConnection};
use uuid::Uuid;

use crate::{EnqueueError, IntoMessage, Message, Prepared, backlog::Watch, sequence, store, trace};

/// Data of one INSERT, in bytes: far below the smallest `max_allowed_packet` in use (16 MiB on MariaDB, 64 MiB on MySQL).
const CHUNK_BYTES: usize = 512 * 1024;
/// Bytes of a packet that are not key, headers or payload of the message, at most.
const PACKET_OVERHEAD: usize = 16 * 1024;

/// The service's end of the outbox: writes messages in the service's own transaction.
///
/// It holds limits and the last reading of the backlog; keep one, or make one where it is needed.
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
    pub(crate) watch: Watch,
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
        Self { max_message_bytes: 1_000_000, watch: Watch::default() }
    }

    /// The largest message, in bytes of key, headers and payload. 1,000,000 by default, which Kafka takes by default.
    /// Raise the broker's limit first: a message that it does not take ends as dead.
    #[must_use]
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Writes a message in the open transaction of `conn`: `outbox.enqueue(&mut tx, &event)`. It is sent if and only if the
    /// transaction commits. Returns the message id. Three round trips; one more for a sequenced message.
    ///
    /// With the feature `trace` (on by default) the message gets the W3C trace context of the current OpenTelemetry span as headers
    /// `traceparent` and `tracestate`, unless it brings its own.
    ///
    /// After an error nothing of the message is written. After [`EnqueueError::Database`] and
    /// [`EnqueueError::TransactionEnded`] roll back; after the others the transaction is still usable.
    ///
    /// Not safe to cancel: after a time-out of your own around this call (or `select!`) roll back. A transaction that is committed
    /// nevertheless may hold half of the message, which is then never sent.
    pub async fn enqueue(&self, conn: &mut MySqlConnection, message: impl IntoMessage) -> Result<Uuid, EnqueueError> {
        let message = begin(conn, true, message.into_message())?;
        let id = message.id();
        self.write(conn, vec![message]).await?;
        Ok(id)
    }

    /// [`Outbox::enqueue`] for a transaction that was opened by raw SQL, of which sqlx does not know. The server is still asked
    /// whether there is one.
    pub async fn enqueue_unchecked(
        &self,
        conn: &mut MySqlConnection,
        message: impl IntoMessage,
    ) -> Result<Uuid, EnqueueError> {
        let message = begin(conn, false, message.into_message())?;
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
        let messages = messages.into_iter().map(M::into_message).collect::<Result<Vec<_>, _>>();
        let messages = begin(conn, true, messages)?;
        let ids = messages.iter().map(Message::id).collect();
        self.write(conn, messages).await?;
        Ok(ids)
    }

    /// The message as plain SQL, for a service that has its transaction in another library: run the statements in their order, in
    /// the open transaction of the business row, on its connection. Nobody checks that there is one.
    ///
    /// The limits are checked here; a message id that exists is the server's error 1062 then. The statements use
    /// `LAST_INSERT_ID()`: run nothing between them.
    pub fn prepare(&self, message: impl IntoMessage) -> Result<Prepared, EnqueueError> {
        let mut message = message.into_message()?;
        trace::capture(&mut message);
        self.check(std::slice::from_ref(&message))?;
        Prepared::new(&message)
    }

    async fn write(&self, conn: &mut MySqlConnection, mut messages: Vec<Message>) -> Result<(), EnqueueError> {
        #[cfg(feature = "metrics")]
        let observed = crate::observe::Enqueue::of(&messages);
        let written = self.try_write(conn, &mut messages).await;
        #[cfg(feature = "metrics")]
        observed.ended(&written);
        written
    }

    async fn try_write(&self, conn: &mut MySqlConnection, messages: &mut [Message]) -> Result<(), EnqueueError> {
        messages.iter_mut().for_each(trace::capture);
        self.check(messages)?;
        self.watch.check(conn).await?;
        if !store::enqueue::savepoint(conn).await? {
            return Err(EnqueueError::TransactionEnded);
        }
        let written = number_and_insert(conn, messages).await;
        if written.is_err() {
            // The first error is the one to tell; where this one fails too, the connection is lost, and with it the transaction.
            store::enqueue::undo(conn).await.ok();
        }
        written
    }

    fn check(&self, messages: &[Message]) -> Result<(), EnqueueError> {
        let mut ids = HashSet::new();
        for message in messages {
            message.validate()?;
            let (size, limit) = (message.size(), self.max_message_bytes);
            if size > limit {
                return Err(EnqueueError::TooLarge { size, limit });
            }
            if !ids.insert(message.id()) {
                return Err(EnqueueError::Duplicate(message.id()));
            }
        }
        Ok(())
    }
}

async fn number_and_insert(conn: &mut MySqlConnection, messages: &mut [Message]) -> Result<(), EnqueueError> {
    sequence::number(conn, messages).await?;
    insert_all(conn, messages).await
}

/// What has to be right before anything is written.
fn begin<T>(conn: &MySqlConnection, checked: bool, made: Result<T, EnqueueError>) -> Result<T, EnqueueError> {
    let made = if checked && !conn.is_in_transaction() { Err(EnqueueError::NotInTransaction) } else { made };
    #[cfg(feature = "metrics")]
    if let Err(error) = &made {
        crate::observe::failed(error);
    }
    made
}

async fn insert_all(conn: &mut MySqlConnection, mut messages: &[Message]) -> Result<(), EnqueueError> {
    while !messages.is_empty() {
        let size = store::enqueue::chunk(messages, CHUNK_BYTES);
        let (chunk, rest) = messages.split_at(size);
        let headers = chunk.iter().map(Message::headers_json).collect::<Result<Vec<_>, _>>()?;
        check_packet(conn, chunk, &headers).await?;
        if let Err(error) = store::enqueue::insert_messages(conn, chunk, &headers).await {
            return Err(explain(conn, chunk, error).await);
        }
        messages = rest;
    }
    Ok(())
}

/// A chunk larger than [`CHUNK_BYTES`] is one large message: it is the only case that may not fit into a packet. The server ends the
/// connection that sends more, so it is found before.
async fn check_packet(
    conn: &mut MySqlConnection,
    chunk: &[Message],
    headers: &[Option<String>],
) -> Result<(), EnqueueError> {
    let ([message], [headers]) = (chunk, headers) else { return Ok(()) };
    let size = message.stored_size(headers.as_deref());
    if size <= CHUNK_BYTES {
        return Ok(());
    }
    let packet = store::enqueue::max_allowed_packet(conn).await?;
    let limit = usize::try_from(packet).unwrap_or(usize::MAX).saturating_sub(PACKET_OVERHEAD);
    if size > limit { Err(EnqueueError::AbovePacket { size, limit }) } else { Ok(()) }
}

/// Finds out whether an error is a message id that exists already, and which. A transaction may not see what was committed after it
/// began: of one message the server's word is enough.
async fn explain(conn: &mut MySqlConnection, chunk: &[Message], error: sqlx::Error) -> EnqueueError {
    let violation = error.as_database_error().filter(|error| error.is_unique_violation());
    if let Some(violation) = violation {
        if let [message] = chunk
            && violation.message().contains("outbox_messages_message_id")
        {
            return EnqueueError::Duplicate(message.id());
        }
        for message in chunk {
            if matches!(store::enqueue::exists(conn, message).await, Ok(true)) {
                return EnqueueError::Duplicate(message.id());
            }
        }
    }
    error.into()
}
