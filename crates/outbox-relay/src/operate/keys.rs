//! Keys: those whose messages wait, and the unsent messages of one.

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::operate::{
        find::StateTable,
        messages,
        unsent::{self, UnsentRow},
    },
};
use serde::Serialize;

use super::{
    unsent::{Cursor, Filter, LIST_BUDGET, UnsentMessage, message, scan},
    why::{Reference, why},
};

/// Most waiting messages that are counted.
const COUNT_BUDGET: u32 = 100_000;

/// A key whose messages wait. Its names are stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitingKeys {
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
pub async fn waiting_keys(db: &mut MySqlConnection, limit: u32) -> Result<Vec<WaitingKeys>, sqlx::Error> {
    let keys = unsent::waiting_keys(db, limit).await?;
    Ok(keys.iter().map(|key| WaitingKeys { messages: key.messages, first: message(&key.head) }).collect())
}

/// A key. Its names are stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyQueue {
    /// The number of its delayed messages that wait in their order, at most 100,000.
    pub waiting: u64,
    /// The first of its unsent messages that the others wait for, of those that were found.
    pub first: Option<First>,
    /// Its unsent messages, the oldest first.
    pub rows: Vec<KeyMessage>,
    /// Pending rows that were looked at: they have no index of keys.
    pub looked_at: usize,
    /// The place behind which more pending ones may be; `None` at the end.
    pub next: Option<Cursor>,
}

/// An unsent message of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyMessage {
    /// `pending`, `delayed` or `dead`.
    pub state: &'static str,
    /// The message.
    #[serde(flatten)]
    pub message: UnsentMessage,
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

/// Returns the hash of a message's key, 0 if it has none; `None`: the message is not there.
///
/// # Errors
///
/// If the database fails.
pub async fn hash_of(db: &mut MySqlConnection, reference: Reference) -> Result<Option<u64>, sqlx::Error> {
    let Some(id) = reference.number(db).await? else { return Ok(None) };
    messages::hash_of(db, id).await
}

/// Lists the unsent messages of the key with this hash, at most `limit`. Of the pending ones those behind a place:
/// looks at 20,000 rows at most.
///
/// # Errors
///
/// If the database fails. End the connection then: it may have an open transaction.
pub async fn key(db: &mut MySqlConnection, key_hash: u64, after: Cursor, limit: u32) -> Result<KeyQueue, sqlx::Error> {
    let mut rows = Vec::new();
    let mut waiting = 0;
    for lane in unsent::lanes(db).await? {
        for (table, holds_key) in
            [StateTable::Delayed, StateTable::Dead].into_iter().flat_map(|table| [(table, true), (table, false)])
        {
            rows.extend(unsent::of_key(db, table, (lane, key_hash), holds_key, limit).await?);
        }
        let rest = COUNT_BUDGET.saturating_sub(u32::try_from(waiting).unwrap_or(COUNT_BUDGET));
        waiting += unsent::waiting(db, lane, &[key_hash], rest).await?;
    }
    let (looked_at, next) = scan(db, StateTable::Pending, &Filter::default(), (after, LIST_BUDGET), |row| {
        if row.state.key_hash == key_hash {
            rows.push(row);
        }
        true
    })
    .await?;
    rows.sort_unstable_by_key(|row| row.id);
    let first = match rows.iter().find(|row| holds(row)).map(|row| row.id) {
        Some(id) => {
            let why = why(db, Reference::Number(id)).await?;
            Some(First { id, why: why.why, remedy: why.remedy })
        }
        None => None,
    };
    rows.truncate(limit as usize);
    let row = |row: &UnsentRow| KeyMessage { state: name(row.state.table), message: message(row) };
    Ok(KeyQueue { waiting, first, rows: rows.iter().map(row).collect(), looked_at, next })
}

/// Whether a message is sent before the later ones of its key: not one that is scheduled or was released.
fn holds(row: &UnsentRow) -> bool {
    row.state.table == StateTable::Pending || row.state.holds_key
}

const fn name(table: StateTable) -> &'static str {
    match table {
        StateTable::Pending => "pending",
        StateTable::Delayed => "delayed",
        StateTable::Dead => "dead",
    }
}
