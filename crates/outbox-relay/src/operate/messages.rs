//! Messages of all states, by topic, key, kind, state and time.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    time::{Duration, Instant},
};

use outbox_core::{
    key_hash,
    sqlx::{self, MySqlConnection},
    store::operate::{
        find::StateTable,
        jobs::Actor,
        messages::{self, ListStep, ListedRow, WantedMessages},
    },
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{unsent::time, why::Reference};

/// The time after which no further step begins.
const TIME: Duration = Duration::from_secs(2);
/// Rows of one read.
const STEP: u32 = 5_000;
/// Most messages whose state is looked up at once.
const FOUND: u32 = 500;

/// The messages of interest; `None` means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageFilter {
    /// Only those of this topic.
    pub topic: Option<String>,
    /// Only those with this key, of that topic.
    pub key: Option<String>,
    /// Only those of this kind of event.
    pub event_type: Option<String>,
    /// Only those in this state.
    pub state: Option<MessageState>,
    /// Only those that were enqueued at this time or later, in microseconds since 1970.
    pub since: Option<i64>,
    /// Only those that were enqueued before this time.
    pub until: Option<i64>,
}

/// The state of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageState {
    /// Due, and not claimed.
    Pending,
    /// In the hands of a relay.
    Claimed,
    /// It waits for a time or its key.
    Delayed,
    /// Given up.
    Dead,
    /// No longer in the queue: `relay why` tells where it went.
    Sent,
}

/// A message. Its names are stable; times are RFC 3339, by the database's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListedMessage {
    /// Its number in the tables.
    pub id: u64,
    /// The id that consumers see.
    pub message_id: String,
    /// The topic.
    pub topic: String,
    /// The kind of event.
    pub event_type: Option<String>,
    /// Its state.
    pub state: MessageState,
    /// Why it waits, or was given up; the relay that has claimed it.
    pub reason: Option<String>,
    /// The lane, if it is in the queue.
    pub lane: Option<u16>,
    /// Attempts spent, if it is in the queue.
    pub attempts: Option<u16>,
    /// The time of the enqueue.
    pub enqueued_at: String,
    /// The time for which it was scheduled.
    pub due_at: Option<String>,
    /// The time after which it is not published.
    pub expires_at: Option<String>,
    /// The last error.
    pub error: Option<String>,
}

/// A part of a list, and where to go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MessagePage {
    /// The part, the newest first.
    pub rows: Vec<ListedMessage>,
    /// About how many rows were looked at.
    pub looked_at: u64,
    /// The highest id that was looked at; 0 if there was none.
    pub newest: u64,
    /// The id below which more rows may be; `None` at the end.
    pub next: Option<u64>,
}

/// Lists messages below an id, at most `limit`, the newest first. Looks at `budget` rows at most, for two seconds.
///
/// # Errors
///
/// If the database fails. End the connection then: it may have an open transaction.
pub async fn list(
    db: &mut MySqlConnection,
    filter: &MessageFilter,
    below: Option<u64>,
    limit: usize,
    budget: u64,
) -> Result<MessagePage, sqlx::Error> {
    let begin = Instant::now();
    let topic = filter.topic.as_deref();
    let hashes = match filter.key.as_deref() {
        Some(key) => Some(hashes(db, topic, key).await?),
        None => None,
    };
    let wanted = WantedMessages {
        topic,
        key_hashes: hashes.as_deref(),
        event_type: filter.event_type.as_deref(),
        since: filter.since,
        until: filter.until,
    };
    let mut below = below.unwrap_or(u64::MAX);
    if let Some(until) = filter.until {
        below = below.min(messages::first_since(db, until.saturating_add(CLOCKS)).await?);
    }
    let first = match filter.since {
        Some(since) => messages::first_since(db, since.saturating_sub(CLOCKS)).await?,
        None => 0,
    };
    let mut page = MessagePage { rows: Vec::new(), looked_at: 0, newest: 0, next: None };
    while page.rows.len() < limit {
        let rest = u32::try_from(budget.saturating_sub(page.looked_at)).unwrap_or(STEP).min(STEP);
        if rest == 0 || begin.elapsed() > TIME {
            break;
        }
        let ListStep { low, high, rows } = messages::step(db, below, rest).await?;
        if rows == 0 || high < first {
            return Ok(page);
        }
        page.newest = page.newest.max(high);
        let from = low.max(first);
        let found = messages::between(db, (from, below), &wanted, FOUND).await?;
        // Those behind the last one that was found were not looked at, if there was no room for them.
        let cut = found.last().filter(|_| found.len() == FOUND as usize).map(|row| row.id);
        page.looked_at += cut.map_or(rows, |cut| (high + 1 - cut).min(rows));
        below = cut.unwrap_or(from);
        let wanted = |row: &ListedMessage| filter.state.is_none_or(|state| state == row.state);
        page.rows.extend(found.into_iter().map(listed).filter(wanted));
    }
    if page.rows.len() > limit {
        page.rows.truncate(limit);
        below = page.rows.last().map_or(below, |row| row.id);
    }
    page.next = Some(below);
    Ok(page)
}

/// The hashes of a key in its topic; without one, in the topics of [`messages::topics`].
async fn hashes(db: &mut MySqlConnection, topic: Option<&str>, key: &str) -> Result<Vec<u64>, sqlx::Error> {
    let topics = match topic {
        Some(topic) => vec![topic.to_owned()],
        None => messages::topics(db).await?,
    };
    let hashes: BTreeSet<_> = topics.iter().map(|topic| key_hash(topic, Some(key.as_bytes()))).collect();
    // No message has this one.
    Ok(if hashes.is_empty() { vec![u64::MAX] } else { hashes.into_iter().collect() })
}

/// In microseconds: by how much the database's clock may have been stepped without a message being passed over.
const CLOCKS: i64 = 60_000_000;

/// Names the state.
fn listed(row: ListedRow) -> ListedMessage {
    let ListedRow { id, message, state, owner } = row;
    let table = state.as_ref().map(|state| state.table);
    let reason = state.as_ref().map(|state| &state.reason);
    let (name, reason) = match (table, &owner) {
        (Some(StateTable::Pending), Some(_)) => (MessageState::Claimed, owner.as_ref()),
        (Some(StateTable::Pending), None) => (MessageState::Pending, None),
        (Some(StateTable::Delayed), _) => (MessageState::Delayed, reason),
        (Some(StateTable::Dead), _) => (MessageState::Dead, reason),
        (None, _) => (MessageState::Sent, None),
    };
    ListedMessage {
        id,
        message_id: message.message_id.to_string(),
        topic: message.topic,
        event_type: message.event_type,
        state: name,
        reason: reason.cloned(),
        lane: state.as_ref().map(|state| state.lane),
        attempts: state.as_ref().map(|state| state.attempts),
        enqueued_at: time(message.created_at),
        due_at: message.due_at.map(time),
        expires_at: message.expires_at.map(time),
        error: state.and_then(|state| state.error),
    }
}

/// Returns the key, headers and payload of a message, and records that; `None`: it is not there. Bytes that are no text
/// are in hexadecimal digits, under a name with `_hex`.
///
/// # Errors
///
/// If the database fails. End the connection then: it may have an open transaction.
pub async fn reveal(
    db: &mut MySqlConnection,
    reference: Reference,
    actor: &Actor<'_>,
) -> Result<Option<Map<String, Value>>, sqlx::Error> {
    let Some(id) = reference.number(db).await? else { return Ok(None) };
    let Some(contents) = messages::reveal(db, id, actor).await? else { return Ok(None) };
    let mut parts = Map::new();
    parts.insert("content_type".to_owned(), contents.content_type.into());
    let headers = contents.headers.into_iter().map(|(name, value)| (name, Value::from(value)));
    parts.insert("headers".to_owned(), Value::Object(headers.collect()));
    for (name, bytes) in [("key", contents.key), ("payload", contents.payload)] {
        match bytes.map(String::from_utf8) {
            None => drop(parts.insert(name.to_owned(), Value::Null)),
            Some(Ok(text)) => drop(parts.insert(name.to_owned(), text.into())),
            Some(Err(error)) => {
                let digits = error.as_bytes().iter().fold(String::new(), |mut digits, byte| {
                    // Writing to a string does not fail.
                    write!(digits, "{byte:02x}").ok();
                    digits
                });
                parts.insert(format!("{name}_hex"), digits.into());
            }
        }
    }
    Ok(Some(parts))
}
