//! Why a message is not sent, or where it went: its rows, the decision over them (`verdict`), and the answer.

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::{
        operate::{
            find::{self, FoundMessage},
            jobs, locked,
        },
        refusal::{Refusal, refusal},
        settle::attempts::FailureRow,
    },
};
use serde::Serialize;

mod discarded;
mod reference;
mod remedies;
mod verdict;

pub(super) use self::verdict::PATIENCE;
use self::verdict::{Verdict, judge};
pub use self::{reference::Reference, remedies::remedy};
use super::instances::Live;
use crate::moment::rfc3339;

/// The answer. Its names are stable; times are RFC 3339, by the database's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Why {
    /// One sentence or two, for people.
    pub why: String,
    /// The next command or change; `None` if there is nothing to do.
    pub remedy: Option<String>,
    /// `unknown`, `lost`, `pending`, `claimed`, `delayed`, `dead` or `sent`.
    pub state: &'static str,
    /// A short code for the decision, such as `behind` or `no_route`.
    pub cause: String,
    /// The number of the message in the tables.
    pub id: Option<u64>,
    /// The id that consumers see.
    pub message_id: Option<String>,
    /// The topic.
    pub topic: Option<String>,
    /// The kind of event.
    pub event_type: Option<String>,
    /// The trace in which it was enqueued: the second part of its header `traceparent`.
    pub trace_id: Option<String>,
    /// The lane.
    pub lane: Option<u16>,
    /// Attempts spent.
    pub attempts: Option<u16>,
    /// The time of the enqueue.
    pub enqueued_at: Option<String>,
    /// The time for which it was scheduled.
    pub due_at: Option<String>,
    /// The time after which it is not published.
    pub expires_at: Option<String>,
    /// The last twenty failures, the oldest first. Waits that spend no attempt are none.
    pub failures: Vec<LastFailure>,
    /// Where a replay sends it, as `sink/name`; `None`: to the destination of its route.
    pub replayed_to: Option<String>,
    /// The brokers' confirmations, the oldest first.
    pub receipts: Vec<Confirmation>,
}

/// A failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LastFailure {
    /// When it was written.
    pub failed_at: String,
    /// The number of the attempt. A death that spends none has the number of the next. An operator's retry counts from
    /// 1 again.
    pub attempt: u16,
    /// The relay.
    pub owner: String,
    /// A short code, such as `unconfirmed`; `taken_over` if the relay ended.
    pub reason: String,
    /// The broker's error text.
    pub error: Option<String>,
}

/// A broker's confirmation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Confirmation {
    /// When it was written.
    pub sent_at: String,
    /// The relay that published the message.
    pub owner: String,
    /// The message's place at the broker.
    pub place: Option<String>,
}

/// Finds a message and explains its state. Locks no row.
///
/// # Errors
///
/// If the database fails. End the connection then: it may have an open transaction.
pub async fn why(db: &mut MySqlConnection, reference: Reference) -> Result<Why, sqlx::Error> {
    let id = reference.number(db).await?;
    let found = match id {
        Some(id) => find::find(db, id).await?,
        None => FoundMessage::default(),
    };
    let live = Live::read(db).await?;
    let mut verdict = judge(&found, &live);
    if verdict.state == "unknown" {
        // An account may lack the rights on the audit.
        let jobs = match jobs::list(db, discarded::JOBS).await {
            Err(error) if refusal(&error) == Some(Refusal::Setup) => Vec::new(),
            jobs => jobs?,
        };
        verdict = discarded::by(&jobs, id).unwrap_or(verdict);
    }
    if verdict.misses_relay
        && let Ok(Some(lock)) = locked::find(db).await
    {
        // Relays may not have written a heartbeat either.
        verdict.why.extend([format!(" But {lock}.")]);
    }
    let Verdict { state, cause, why, remedy, .. } = verdict;
    let row = found.states.first();
    let message = found.message.as_ref();
    let time = |micros: i64| rfc3339(micros).unwrap_or_default();
    let confirmation = |it: &find::ReceiptRow| Confirmation {
        sent_at: time(it.sent_at),
        owner: it.owner.clone(),
        place: it.place.clone(),
    };
    let failure = |it: &FailureRow| LastFailure {
        failed_at: time(it.failed_at),
        attempt: it.attempt,
        owner: it.owner.clone(),
        reason: it.reason.clone(),
        error: it.error.clone(),
    };
    Ok(Why {
        why,
        remedy,
        state,
        cause,
        id,
        message_id: message.map(|message| message.message_id.to_string()),
        topic: message.map(|message| message.topic.clone()),
        event_type: message.and_then(|message| message.event_type.clone()),
        trace_id: found.trace_id.clone(),
        lane: row.map(|row| row.lane),
        attempts: row.map(|row| row.attempts),
        enqueued_at: message.map(|message| time(message.created_at)),
        due_at: message.and_then(|message| message.due_at).map(time),
        expires_at: message.and_then(|message| message.expires_at).map(time),
        failures: found.failures.iter().map(failure).collect(),
        replayed_to: found.mark.as_ref().and_then(|mark| mark.to.clone()),
        receipts: found.receipts.iter().map(confirmation).collect(),
    })
}
