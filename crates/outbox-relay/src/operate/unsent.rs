//! Unsent messages: lists those of a state, and counts them by reason, topic, error or lane.

use std::{collections::HashMap, fmt, str::FromStr};

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::operate::{
        find::StateTable,
        unsent::{self, UnsentRow},
    },
};
use serde::{Deserialize, Serialize, Serializer};

use super::why::Reference;
use crate::moment::rfc3339;

/// Rows of one read.
pub(super) const PAGE: u32 = 1_000;
/// Most rows that a list looks at.
pub(super) const LIST_BUDGET: usize = 20_000;
/// Most rows that a count looks at.
pub(super) const COUNT_BUDGET: usize = 100_000;

/// The messages of interest; `None` means all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Only those with this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Only those of this topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Only those whose last error contains this text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Only those of this lane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane: Option<u16>,
    /// The message with this number in the tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
}

impl Filter {
    /// Goes past what precedes the messages of interest.
    #[must_use]
    pub fn start(&self, after: Cursor) -> Cursor {
        let first = Cursor { lane: self.lane.unwrap_or(0), id: self.id.map_or(0, |id| id.saturating_sub(1)) };
        after.max(first)
    }

    /// Whether no message of interest is at this row or behind it.
    #[must_use]
    pub fn ends_before(&self, row: &UnsentRow) -> bool {
        let id = |id| row.id > id;
        self.lane.is_some_and(|lane| row.state.lane > lane || row.state.lane == lane && self.id.is_some_and(id))
    }

    /// Whether it is a message of interest.
    #[must_use]
    pub fn takes(&self, row: &UnsentRow) -> bool {
        self.reason.as_ref().is_none_or(|reason| *reason == row.state.reason)
            && self.topic.as_ref().is_none_or(|topic| *topic == row.topic)
            && self.error.as_ref().is_none_or(|error| row.state.error.as_ref().is_some_and(|text| text.contains(error)))
            && self.lane.is_none_or(|lane| lane == row.state.lane)
            && self.id.is_none_or(|id| id == row.id)
    }
}

/// A place in the list: a lane, and an id in it. Written as `0:1523`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The lane.
    pub lane: u16,
    /// The id.
    pub id: u64,
}

impl FromStr for Cursor {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let place =
            text.split_once(':').and_then(|(lane, id)| Some(Self { lane: lane.parse().ok()?, id: id.parse().ok()? }));
        place.ok_or("give a lane and a number, such as 0:1523")
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.lane, self.id)
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// An unsent message. Times are RFC 3339, by the database's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnsentMessage {
    /// Its number in the tables.
    pub id: u64,
    /// The id that consumers see.
    pub message_id: Option<String>,
    /// The lane.
    pub lane: u16,
    /// The topic.
    pub topic: String,
    /// The reason, a short code; empty if it is pending.
    pub reason: String,
    /// Attempts spent.
    pub attempts: u16,
    /// The time of the enqueue.
    pub enqueued_at: Option<String>,
    /// When a delayed one is due; `None` in the queue of its key.
    pub due_at: Option<String>,
    /// When a dead one was given up.
    pub died_at: Option<String>,
    /// Whether later messages of its key wait for it.
    pub holds_key: bool,
    /// The last error.
    pub error: String,
}

/// A part of an answer, and where to go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Page<T> {
    /// The part.
    pub rows: Vec<T>,
    /// Rows that were looked at.
    pub looked_at: usize,
    /// The place behind which more rows may be; `None` at the end.
    pub next: Option<Cursor>,
}

/// Finds a message; `None` if it has another state.
///
/// # Errors
///
/// If the database fails.
pub async fn find(
    db: &mut MySqlConnection,
    table: StateTable,
    reference: Reference,
) -> Result<Option<Cursor>, sqlx::Error> {
    let Some(id) = reference.number(db).await? else { return Ok(None) };
    Ok(unsent::lane(db, table, id).await?.map(|lane| Cursor { lane, id }))
}

/// Lists at most `limit` messages behind a place. Looks at 20,000 rows at most.
///
/// # Errors
///
/// If the database fails.
pub async fn list(
    db: &mut MySqlConnection,
    table: StateTable,
    filter: &Filter,
    after: Cursor,
    limit: usize,
) -> Result<Page<UnsentMessage>, sqlx::Error> {
    let mut messages = Vec::new();
    let (looked_at, next) = scan(db, table, filter, (after, LIST_BUDGET), |row| {
        messages.push(message(&row));
        messages.len() < limit
    })
    .await?;
    Ok(Page { rows: messages, looked_at, next })
}

/// The property by which messages are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupBy {
    /// Their reason.
    Reason,
    /// Their topic.
    Topic,
    /// Their reason and the text of their last error.
    Error,
    /// Their lane.
    Lane,
}

/// Messages with something in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnsentGroup {
    /// The reason, topic, or reason and error.
    pub group: String,
    /// Their number.
    pub messages: u64,
    /// Those for which later messages of their key wait.
    pub holding: u64,
    /// When the first was given up (dead messages) or enqueued.
    pub first: String,
    /// When the last was.
    pub last: String,
    /// One of them.
    pub example: u64,
}

/// Counts messages behind a place, the largest group first. Looks at 100,000 rows at most.
///
/// # Errors
///
/// If the database fails.
pub async fn groups(
    db: &mut MySqlConnection,
    table: StateTable,
    filter: &Filter,
    after: Cursor,
    by: GroupBy,
) -> Result<Page<UnsentGroup>, sqlx::Error> {
    let mut counts = GroupCounts::default();
    let (looked_at, next) = scan(db, table, filter, (after, COUNT_BUDGET), |row| {
        counts.add(&row, by);
        true
    })
    .await?;
    Ok(Page { rows: counts.groups(), looked_at, next })
}

/// Shows the messages of interest behind a place to `visit`, until it returns false, the budget of rows is spent, or
/// there are no more. Returns the rows that were looked at, and where more may be.
pub(super) async fn scan(
    db: &mut MySqlConnection,
    table: StateTable,
    filter: &Filter,
    (after, budget): (Cursor, usize),
    mut visit: impl FnMut(UnsentRow) -> bool,
) -> Result<(usize, Option<Cursor>), sqlx::Error> {
    let mut place = filter.start(after);
    let mut looked_at = 0;
    loop {
        let rows = unsent::above(db, table, (place.lane, place.id), PAGE).await?;
        let is_last = rows.len() < PAGE as usize;
        for row in rows {
            if filter.ends_before(&row) {
                return Ok((looked_at, None));
            }
            place = Cursor { lane: row.state.lane, id: row.id };
            looked_at += 1;
            if filter.takes(&row) && !visit(row) || looked_at >= budget {
                return Ok((looked_at, Some(place)));
            }
        }
        if is_last {
            return Ok((looked_at, None));
        }
    }
}

pub(super) fn message(row: &UnsentRow) -> UnsentMessage {
    let state = &row.state;
    let at = |table| state.at.filter(|_| state.table == table).map(time);
    UnsentMessage {
        id: row.id,
        message_id: row.message_id.map(|id| id.to_string()),
        lane: state.lane,
        topic: row.topic.clone(),
        reason: state.reason.clone(),
        attempts: state.attempts,
        enqueued_at: row.created_at.map(time),
        due_at: at(StateTable::Delayed),
        died_at: at(StateTable::Dead),
        holds_key: state.holds_key,
        error: state.error.clone().unwrap_or_default(),
    }
}

/// When a dead message was given up, and any other enqueued.
pub(super) fn begin(row: &UnsentRow) -> i64 {
    let died_at = row.state.at.filter(|_| row.state.table == StateTable::Dead);
    died_at.or(row.created_at).unwrap_or_default()
}

#[derive(Default)]
struct GroupCounts(HashMap<String, GroupCount>);

struct GroupCount {
    messages: u64,
    holding: u64,
    first: i64,
    last: i64,
    example: u64,
}

impl GroupCounts {
    fn add(&mut self, row: &UnsentRow, by: GroupBy) {
        let state = &row.state;
        let at = begin(row);
        let group = match by {
            GroupBy::Reason => state.reason.clone(),
            GroupBy::Topic => row.topic.clone(),
            GroupBy::Error => format!("{}: {}", state.reason, state.error.as_deref().unwrap_or_default()),
            GroupBy::Lane => state.lane.to_string(),
        };
        let new = || GroupCount { messages: 0, holding: 0, first: at, last: at, example: row.id };
        let count = self.0.entry(group).or_insert_with(new);
        count.messages += 1;
        count.holding += u64::from(state.holds_key);
        (count.first, count.last) = (count.first.min(at), count.last.max(at));
    }

    fn groups(self) -> Vec<UnsentGroup> {
        let group = |(group, count): (String, GroupCount)| UnsentGroup {
            group,
            messages: count.messages,
            holding: count.holding,
            first: time(count.first),
            last: time(count.last),
            example: count.example,
        };
        let mut groups: Vec<_> = self.0.into_iter().map(group).collect();
        groups.sort_by(|a, b| b.messages.cmp(&a.messages).then_with(|| a.group.cmp(&b.group)));
        groups
    }
}

pub(super) fn time(micros: i64) -> String {
    rfc3339(micros).unwrap_or_default()
}
