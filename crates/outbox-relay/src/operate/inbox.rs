//! The consumers of the inbox in this database.

use outbox_core::{
    Uuid,
    sqlx::{self, MySqlConnection},
    store::{
        inbox::{consumers, retries},
        operate::{find, jobs::Actor},
    },
};
use serde::Serialize;

use super::{unsent::time, why::Reference};

/// A consumer. Its names are stable; times are RFC 3339, by the database's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InboxConsumer {
    /// Its name.
    pub consumer: String,
    /// Messages that it has processed and that the inbox remembers, counted up to 100,000; without the dead ones.
    pub processed: u64,
    /// When it processed the last one; `None` if that is not among the last 20,000 of all consumers.
    pub last_at: Option<String>,
    /// Messages that it gave up on.
    pub dead: u64,
    /// When it gave up the last one.
    pub last_dead_at: Option<String>,
    /// The time of the oldest row of the whole inbox: consumers would do again what they processed before.
    pub remembers_since: Option<String>,
}

/// Lists the consumers by name.
///
/// # Errors
///
/// If the database fails.
pub async fn list(db: &mut MySqlConnection) -> Result<Vec<InboxConsumer>, sqlx::Error> {
    let consumer = |row: consumers::ConsumerRow| InboxConsumer {
        consumer: row.consumer,
        processed: row.processed,
        last_at: row.last_at.map(time),
        dead: row.dead,
        last_dead_at: row.last_dead_at.map(time),
        remembers_since: row.remembers_since.map(time),
    };
    Ok(consumers::consumers(db).await?.into_iter().map(consumer).collect())
}

/// The outcome of a message at a consumer. Its names are stable; times are RFC 3339, by the database's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InboxOutcome {
    /// The consumer.
    pub consumer: String,
    /// `processed` or `dead`.
    pub outcome: &'static str,
    /// When that was.
    pub at: String,
    /// Why it was given up.
    pub reason: Option<String>,
    /// The error.
    pub error: Option<String>,
}

/// Lists the outcomes of a message at all consumers. `None`: there is no message with this number, which may have been
/// purged; with its UUID it is found.
///
/// # Errors
///
/// If the database fails.
pub async fn outcomes(
    db: &mut MySqlConnection,
    reference: Reference,
) -> Result<Option<Vec<InboxOutcome>>, sqlx::Error> {
    let message_id = match reference {
        Reference::Uuid(message_id) => message_id,
        Reference::Number(id) => match find::message(db, id).await? {
            Some(message) => message.message_id,
            None => return Ok(None),
        },
    };
    let outcome = |row: consumers::OutcomeRow| {
        let (reason, error) = row.dead.unzip();
        InboxOutcome {
            consumer: row.consumer,
            outcome: if reason.is_some() { "dead" } else { "processed" },
            at: time(row.at),
            reason,
            error,
        }
    };
    Ok(Some(consumers::outcomes(db, message_id).await?.into_iter().map(outcome).collect()))
}

/// A message that a consumer gave up on. Its names are stable; times are RFC 3339, by the database's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadMessage {
    /// The consumer.
    pub consumer: String,
    /// The message, as consumers see it.
    pub message_id: String,
    /// Its topic or queue.
    pub topic: String,
    /// The attempts that were spent.
    pub attempts: u32,
    /// When it was given up.
    pub died_at: String,
    /// Why.
    pub reason: String,
    /// The error.
    pub error: String,
}

/// Lists the newest messages that consumers gave up on, of one consumer and for one reason if they are given; among the
/// newest 20,000.
///
/// # Errors
///
/// If the database fails.
pub async fn dead(
    db: &mut MySqlConnection,
    wanted: (Option<&str>, Option<&str>),
    limit: u32,
) -> Result<Vec<DeadMessage>, sqlx::Error> {
    let message = |row: consumers::DeadRow| DeadMessage {
        consumer: row.consumer,
        message_id: row.message_id.to_string(),
        topic: row.topic,
        attempts: row.attempts,
        died_at: time(row.died_at),
        reason: row.reason,
        error: row.error,
    };
    Ok(consumers::dead(db, wanted, limit).await?.into_iter().map(message).collect())
}

/// Orders a consumer to retry the messages that are dead there, or one of them. Returns the number of the order and
/// that of the messages; the first is `None` if there are none.
///
/// # Errors
///
/// If the database fails. End the connection then: it may have an open transaction.
pub async fn retry(
    db: &mut MySqlConnection,
    (consumer, message_id): (&str, Option<Uuid>),
    actor: &Actor<'_>,
) -> Result<(Option<u64>, u64), sqlx::Error> {
    let messages = retries::retryable(db, consumer, message_id).await?;
    if messages == 0 {
        return Ok((None, 0));
    }
    Ok((Some(retries::order(db, (consumer, message_id), messages, actor).await?), messages))
}

/// An order to retry messages that are dead at a consumer. Its names are stable; times are RFC 3339, by the database's
/// clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RetryOrder {
    /// Its number.
    pub retry: u64,
    /// The consumer.
    pub consumer: String,
    /// The message; `None`: all that were dead at the time of the order.
    pub message_id: Option<String>,
    /// `waits for the consumer`: none has begun yet. Then `running`, then `done`.
    pub state: &'static str,
    /// Messages that were processed.
    pub processed: u64,
    /// Messages that are still dead. The log of the consumer has the errors.
    pub failed: u64,
    /// The time of the order.
    pub ordered_at: String,
    /// When the consumer last began with a message.
    pub taken_at: Option<String>,
    /// When it was done with all.
    pub ended_at: Option<String>,
}

/// Lists the newest orders to retry messages that are dead at consumers.
///
/// # Errors
///
/// If the database fails.
pub async fn retries(db: &mut MySqlConnection, limit: u32) -> Result<Vec<RetryOrder>, sqlx::Error> {
    let retry = |row: retries::RetryRow| RetryOrder {
        retry: row.retry_id,
        consumer: row.consumer,
        message_id: row.message_id.map(|id| id.to_string()),
        state: match (row.taken_at, row.ended_at) {
            (_, Some(_)) => "done",
            (Some(_), None) => "running",
            (None, None) => "waits for the consumer",
        },
        processed: row.processed,
        failed: row.failed,
        ordered_at: time(row.ordered_at),
        taken_at: row.taken_at.map(time),
        ended_at: row.ended_at.map(time),
    };
    Ok(retries::retries(db, limit).await?.into_iter().map(retry).collect())
}
