//! Keys: those whose messages wait, and the unsent messages of one.

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::{
        find::StateTable,
        messages::{self, ListedRow, Wanted},
        unsent,
    },
};
use serde::Serialize;

use super::{
    messages::{ListedMessage, listed},
    unsent::{UnsentMessage, message},
    why::{Reference, why},
};

/// Most pending rows that are looked at: they have no index of keys.
const PENDING_BUDGET: u32 = 20_000;
/// Most waiting messages that are counted.
const COUNT_BUDGET: u32 = 100_000;

/// A key whose messages wait. Its names are stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitingKey {
    /// The number of waiting messages, the first included.
    pub messages: u64,
    /// The first one: `relay why` tells more.
    #[serde(flatten)]
    pub first: UnsentMessage,
}

/// Lists the keys with the most waiting messages, at most `limit`, by the first of these. A key itself is not shown.
///
/// # Errors
///
/// If the database fails.
pub async fn waiting_keys(db: &mut MySqlConnection, limit: u32) -> Result<Vec<WaitingKey>, sqlx::Error> {
    let keys = unsent::waiting_keys(db, limit).await?;
    Ok(keys.iter().map(|key| WaitingKey { messages: key.messages, first: message(&key.head) }).collect())
}

/// A key. Its names are stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Key {
    /// The number of its messages that are delayed, at most 100,000.
    pub delayed: u64,
    /// The first of its unsent messages for which the others wait.
    pub first: Option<First>,
    /// Its unsent messages, the oldest first. Of the pending ones, those among the first 20,000 of the queue.
    pub rows: Vec<ListedMessage>,
}

/// The first message of a key, with the verdict of `relay why`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct First {
    /// Its number in the tables.
    pub id: u64,
    /// One sentence or two, for people.
    pub why: String,
    /// The next command or change; `None` if there is nothing to do.
    pub remedy: Option<String>,
}

/// Returns the hash of a message's key; `None`: the message is not there, or has no key.
///
/// # Errors
///
/// If the database fails.
pub async fn hash_of(db: &mut MySqlConnection, reference: Reference) -> Result<Option<u64>, sqlx::Error> {
    let Some(id) = reference.number(db).await? else { return Ok(None) };
    Ok(messages::hash_of(db, id).await?.filter(|hash| *hash != 0))
}

/// Lists the unsent messages of the key with this hash, at most `limit`.
///
/// # Errors
///
/// If the database fails. End the connection then: it may have an open transaction.
pub async fn key(db: &mut MySqlConnection, key_hash: u64, limit: u32) -> Result<Key, sqlx::Error> {
    let mut ids = unsent::of_key(db, key_hash, limit, PENDING_BUDGET).await?;
    ids.sort_unstable();
    ids.truncate(limit as usize);
    let wanted = Wanted { ids: Some(&ids), ..Wanted::default() };
    let rows = if ids.is_empty() { Vec::new() } else { messages::between(db, (0, u64::MAX), &wanted, limit).await? };
    // What was sent since the ids were read is no longer of interest.
    let rows: Vec<_> = rows.into_iter().rev().filter(|row| row.state.is_some()).collect();
    let mut delayed = 0;
    let mut lanes: Vec<_> = rows.iter().filter_map(|row| Some(row.state.as_ref()?.lane)).collect();
    lanes.sort_unstable();
    lanes.dedup();
    for lane in lanes {
        delayed += unsent::waiting(db, lane, &[key_hash], COUNT_BUDGET).await?;
    }
    let first = match rows.iter().find(|row| is_queued(row)).map(|row| row.id) {
        Some(id) => {
            let why = why(db, Reference::Number(id)).await?;
            Some(First { id, why: why.why, remedy: why.remedy })
        }
        None => None,
    };
    Ok(Key { delayed, first, rows: rows.into_iter().map(listed).collect() })
}

/// Whether a message is sent before the later ones of its key: a dead one only while it holds the key.
fn is_queued(row: &ListedRow) -> bool {
    row.state.as_ref().is_some_and(|state| state.table != StateTable::Dead || state.holds_key)
}
