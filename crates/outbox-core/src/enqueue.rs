use std::collections::HashSet;

use sqlx::{Connection as _, MySqlConnection};
use uuid::Uuid;

use crate::{
    EnqueueError, IntoMessage, Message, Prepared, PreparedBatch,
    backlog::Watch,
    sequence,
    store::{self, contents::headers_to_json, enqueue::Open},
    trace,
};

/// Most data of one text, in bytes. With two digits a byte it is far below the smallest `max_allowed_packet` in use (16
/// MiB on MariaDB, 64 MiB on MySQL). A larger message is written by prepared statements.
const CHUNK_BYTES: usize = 256 * 1024;
/// Most bytes of a packet beside the key, headers and payload of the message.
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
        // Kafka's default max.message.bytes is 1,048,588 with the overhead of the record; this leaves room for that.
        Self { max_message_bytes: 1_000_000, watch: Watch::default() }
    }

    /// The largest message, in bytes of key, headers and payload. 1,000,000 by default, which Kafka takes by default.
    /// Raise the broker's limit first: a message that it refuses becomes dead.
    #[must_use]
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Writes a message in the open transaction of `conn`: `outbox.enqueue(&mut tx, &event)`. It is sent if and only if
    /// the transaction commits. The server tells whether there is one; raw SQL may have opened it. Returns the message
    /// id. One round trip; up to four for more than 256 KiB. Statement logs of the server show the message as
    /// hexadecimal digits.
    ///
    /// With the feature `trace` (on by default) the message gets the headers `traceparent` and `tracestate` of the
    /// current OpenTelemetry span (W3C trace context), unless it has its own.
    ///
    /// A [sequenced](Message::sequenced) message locks its key until the transaction ends. Two transactions that
    /// enqueue for two such keys in opposite order deadlock, and the server ends one of them (error 1213): enqueue in
    /// the order of the keys, or with [`Outbox::enqueue_all`], which locks the keys of its messages in one order.
    ///
    /// After an error nothing of the message is written. After [`EnqueueError::Database`],
    /// [`EnqueueError::TransactionEnded`] and [`EnqueueError::NotInTransaction`] roll back; after the others the
    /// transaction is still usable.
    ///
    /// Not safe to cancel: after your own time-out around this call (or `select!`) roll back. A transaction that is
    /// committed nevertheless may hold the message, or (above 256 KiB) half of it. Half a message is never sent.
    pub async fn enqueue(&self, conn: &mut MySqlConnection, message: impl IntoMessage) -> Result<Uuid, EnqueueError> {
        let message = counted(message.into_message())?;
        let id = message.id();
        self.write(conn, vec![message]).await?;
        Ok(id)
    }

    /// Writes many messages, in this order, in few round trips: all or none, like [`Outbox::enqueue`]. The keys of
    /// sequenced messages are locked in the order of topic and key, so that two such calls do not deadlock.
    pub async fn enqueue_all<M: IntoMessage>(
        &self,
        conn: &mut MySqlConnection,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Vec<Uuid>, EnqueueError> {
        let messages = messages.into_iter().map(M::into_message).collect::<Result<Vec<_>, _>>();
        let messages = counted(messages)?;
        let ids = messages.iter().map(Message::id).collect();
        self.write(conn, messages).await?;
        Ok(ids)
    }

    /// The message as plain SQL, for a service that has its transaction in another library. Run the statements in their
    /// order, in the open transaction of the business row, on its connection. The transaction is not checked.
    ///
    /// The limits of a message are checked here; `max_backlog_age` is not. No metric counts the message. A duplicate
    /// message id is the server's error 1062 when the statements run.
    ///
    /// Through a pool each statement would commit alone: a crash between two would leave a message that is never sent.
    /// A statement that gets into another transaction waits for the end of the message's own, and fails with error 1048
    /// if the message is not there.
    pub fn prepare(&self, message: impl IntoMessage) -> Result<Prepared, EnqueueError> {
        let mut message = message.into_message()?;
        trace::capture(&mut message);
        self.check(std::slice::from_ref(&message))?;
        Ok(Prepared::new(&message))
    }

    /// Many messages as plain SQL, like [`Outbox::prepare`]. Where 50 messages in a row are neither sequenced nor
    /// scheduled, and have at most 256 KiB together, they share two statements; any other message has its own.
    pub fn prepare_all<M: IntoMessage>(
        &self,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<PreparedBatch, EnqueueError> {
        let mut messages = messages.into_iter().map(M::into_message).collect::<Result<Vec<_>, _>>()?;
        messages.iter_mut().for_each(trace::capture);
        self.check(&messages)?;
        let ids = messages.iter().map(Message::id).collect();
        Ok(PreparedBatch { ids, statements: store::enqueue::prepare::batch(&messages, CHUNK_BYTES) })
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
        let mut writer = Writer { conn, is_proven: false };
        let written = writer.insert_all(messages).await;
        if written.is_err() && writer.is_proven {
            // The first error is reported. If this call fails too, the connection is lost, and with it the transaction.
            store::enqueue::undo(writer.conn).await.ok();
        }
        written
    }

    fn check(&self, messages: &[Message]) -> Result<(), EnqueueError> {
        let mut ids = HashSet::new();
        for message in messages {
            message.validate()?;
            let size = message.size();
            let limit = self.max_message_bytes;
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

/// Counts a message that could not be made.
fn counted<T>(made: Result<T, EnqueueError>) -> Result<T, EnqueueError> {
    #[cfg(feature = "metrics")]
    if let Err(error) = &made {
        crate::observe::failed(error);
    }
    made
}

/// Writes the messages of a call.
struct Writer<'c> {
    conn: &'c mut MySqlConnection,
    /// Whether the server has a transaction, and the savepoint to return to.
    is_proven: bool,
}

impl Writer<'_> {
    /// The first text proves that there is a transaction, and sets the savepoint. A batch with sequenced keys does so
    /// before it takes their numbers; a single message takes its number in that text.
    async fn insert_all(&mut self, messages: &mut [Message]) -> Result<(), EnqueueError> {
        if messages.len() > 1 && messages.iter().any(|message| message.sequenced) {
            self.prove().await?;
            sequence::number(self.conn, messages).await?;
        }
        let mut messages = &*messages;
        while !messages.is_empty() {
            let (chunk, rest) = messages.split_at(store::enqueue::chunk(messages, CHUNK_BYTES));
            let headers: Vec<_> = chunk.iter().map(|message| headers_to_json(&message.contents.headers)).collect();
            match (chunk, headers.as_slice()) {
                ([message], [headers]) if message.stored_size(headers.as_deref()) > CHUNK_BYTES => {
                    self.insert_large(message, headers.clone()).await?;
                }
                _ => self.insert(chunk, &headers).await?,
            }
            messages = rest;
        }
        Ok(())
    }

    async fn prove(&mut self) -> Result<(), EnqueueError> {
        self.is_proven = self.is_proven || store::enqueue::savepoint(self.conn).await?;
        if self.is_proven { Ok(()) } else { Err(self.without_transaction()) }
    }

    async fn insert(&mut self, chunk: &[Message], headers: &[Option<String>]) -> Result<(), EnqueueError> {
        let mut inserted = store::enqueue::insert(self.conn, chunk, headers, &mut self.is_proven).await;
        if matches!(inserted, Ok(Open::Unknown)) && store::enqueue::is_open(self.conn).await? {
            self.is_proven = true;
            inserted = store::enqueue::insert(self.conn, chunk, headers, &mut self.is_proven).await;
        }
        match inserted {
            Ok(Open::Yes) => Ok(()),
            Ok(Open::No | Open::Unknown) => Err(self.without_transaction()),
            Err(error) => Err(explain(self.conn, chunk, error).await),
        }
    }

    async fn insert_large(&mut self, message: &Message, headers: Option<String>) -> Result<(), EnqueueError> {
        check_packet(self.conn, message.stored_size(headers.as_deref())).await?;
        self.prove().await?;
        match store::enqueue::insert_large(self.conn, message, headers).await {
            Ok(()) => Ok(()),
            Err(error) => Err(explain(self.conn, std::slice::from_ref(message), error).await),
        }
    }

    /// The error where the server has no transaction. sqlx knows whether there was one, unless raw SQL opened it.
    fn without_transaction(&self) -> EnqueueError {
        if self.conn.is_in_transaction() { EnqueueError::TransactionEnded } else { EnqueueError::NotInTransaction }
    }
}

/// Refuses a message that is too large for a packet before it is sent: the server would end the connection.
async fn check_packet(conn: &mut MySqlConnection, size: usize) -> Result<(), EnqueueError> {
    let packet = store::enqueue::max_allowed_packet(conn).await?;
    let limit = usize::try_from(packet).unwrap_or(usize::MAX).saturating_sub(PACKET_OVERHEAD);
    if size > limit { Err(EnqueueError::AbovePacket { size, limit }) } else { Ok(()) }
}

/// Finds the duplicate message id, if that is the error. A transaction may not see rows that were committed after it
/// began, so for a single message the server's error is enough.
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
