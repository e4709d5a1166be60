//! Messages as statements with binds, for other libraries. They write the same rows as [`crate::store::enqueue`]; a test
//! compares.
//!
//! No statement uses what the session remembers of an earlier one, such as `LAST_INSERT_ID()`: a row is found by the
//! message id, a number by its key. So statements between them do no harm, and one that gets into another transaction
//! fails, or writes the right row.

use std::sync::LazyLock;

use crate::store::{
    contents::headers_to_json,
    enqueue::{bytes, chunk, micros},
};
use crate::{
    Bind, Statement,
    message::{Message, Schedule},
    sequence::SEQUENCE_HEADER,
};

/// Takes the next number of a key, as [`crate::store::enqueue::sequence::take`]. Primary key, one row, which stays locked until the
/// transaction ends.
const TAKE_NUMBER: &str = "INSERT INTO outbox_key_sequence (topic, message_key, last_sequence) \
    VALUES (?, ?, 1) ON DUPLICATE KEY UPDATE last_sequence = last_sequence + 1";

/// The INSERT of a message. Key and payload are `$value`, the headers `$headers`.
macro_rules! insert {
    ($value:literal, $headers:literal) => {
        concat!(
            "INSERT INTO outbox_messages \
            (message_id, topic, message_key, event_type, content_type, headers, payload, created_at, due_at, \
            expires_at) \
            VALUES (?, ?, ",
            $value,
            ", ?, ?, ",
            $headers,
            ", ",
            $value,
            ", UTC_TIMESTAMP(6), \
            COALESCE(UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, '1970-01-01' + INTERVAL ? MICROSECOND), \
            UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)"
        )
    };
    // The headers are text before and after the number, which is read from the row that `TAKE_NUMBER` has locked.
    ($value:literal) => {
        insert!(
            $value,
            "CONCAT(?, (SELECT last_sequence FROM outbox_key_sequence WHERE topic = ? AND message_key = ?), ?)"
        )
    };
}

/// Locks the new row.
const INSERT_MESSAGE: &str = insert!("?", "?");
const INSERT_SEQUENCED: &str = insert!("?");

/// For messages whose key or payload is empty, with a bind before each that says so. MariaDB's SQL mode
/// `EMPTY_STRING_IS_NULL` takes an empty bind for NULL: the message would be a tombstone.
const INSERT_EMPTY: &str = insert!("IF(?, x'', ?)", "?");
const INSERT_EMPTY_SEQUENCED: &str = insert!("IF(?, x'', ?)");

/// Locks the new row, and that of the message (shared), which the index `outbox_messages_message_id` finds. So it waits
/// for a message that another transaction has not committed yet. A missing one gives a null, which the column refuses.
const INSERT_PENDING: &str = "INSERT INTO outbox_pending (id, lane, key_hash, bytes) \
    VALUES ((SELECT id FROM outbox_messages WHERE message_id = ?), ?, ?, ?)";

/// As [`INSERT_PENDING`]. One expression for "after this number of microseconds" and "at this time": the first operand
/// is null in the second case.
const INSERT_SCHEDULED: &str = "INSERT INTO outbox_delayed (id, lane, key_hash, bytes, due_at, reason) \
    VALUES ((SELECT id FROM outbox_messages WHERE message_id = ?), ?, ?, ?, \
    COALESCE(UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, '1970-01-01' + INTERVAL ? MICROSECOND), 'scheduled')";

/// The number of messages that one statement of a batch inserts. It is fixed, so that there are few texts.
const ROWS: usize = 50;
static INSERT_MESSAGES: LazyLock<String> = LazyLock::new(|| repeated(INSERT_MESSAGE));
static INSERT_ALL_PENDING: LazyLock<String> = LazyLock::new(|| repeated(INSERT_PENDING));

/// The text with its one row [`ROWS`] times.
fn repeated(text: &'static str) -> String {
    let row = text.split_once("VALUES ").map_or("", |(_, row)| row);
    format!("{text}{}", format!(", {row}").repeat(ROWS - 1))
}

/// One message.
pub(crate) fn statements(message: &Message, headers: Option<String>) -> Vec<Statement> {
    let mut statements = Vec::new();
    if message.sequenced {
        statements.push(Statement { sql: TAKE_NUMBER, binds: topic_and_key(message).into() });
    }
    let sql = match (message.sequenced, has_empty(message)) {
        (false, false) => INSERT_MESSAGE,
        (true, false) => INSERT_SEQUENCED,
        (false, true) => INSERT_EMPTY,
        (true, true) => INSERT_EMPTY_SEQUENCED,
    };
    statements.push(Statement { sql, binds: message_binds(message, headers) });
    let sql = if message.due == Schedule::Now { INSERT_PENDING } else { INSERT_SCHEDULED };
    statements.push(Statement { sql, binds: due_binds(message) });
    statements
}

/// Many messages, in their order. Where [`ROWS`] of them are not sequenced, scheduled or empty, and have at most `most`
/// bytes together, they share two statements.
pub(crate) fn batch(mut messages: &[Message], most: usize) -> Vec<Statement> {
    let mut statements = Vec::new();
    let alike = |message: &Message| !message.sequenced && message.due == Schedule::Now && !has_empty(message);
    let headers = |message: &Message| headers_to_json(&message.contents.headers);
    loop {
        match messages.split_at_checked(ROWS) {
            Some((rows, rest)) if rows.iter().all(alike) && chunk(rows, most) == ROWS => {
                let binds = rows.iter().flat_map(|message| message_binds(message, headers(message))).collect();
                statements.push(Statement { sql: &INSERT_MESSAGES, binds });
                let binds = rows.iter().flat_map(due_binds).collect();
                statements.push(Statement { sql: &INSERT_ALL_PENDING, binds });
                messages = rest;
            }
            _ => {
                let Some((first, rest)) = messages.split_first() else { return statements };
                statements.extend(self::statements(first, headers(first)));
                messages = rest;
            }
        }
    }
}

fn id(message: &Message) -> Bind {
    message.message_id.as_bytes().as_slice().into()
}

fn topic_and_key(message: &Message) -> [Bind; 2] {
    [message.contents.topic.as_str().into(), message.contents.key.as_deref().into()]
}

fn has_empty(message: &Message) -> bool {
    [&message.contents.key, &message.contents.payload].into_iter().flatten().any(Vec::is_empty)
}

/// The binds of a key or a payload.
fn value_binds(message: &Message, value: Option<&[u8]>) -> impl Iterator<Item = Bind> {
    let is_empty = has_empty(message).then(|| Bind::Unsigned(u64::from(value.is_some_and(<[u8]>::is_empty))));
    is_empty.into_iter().chain([value.into()])
}

fn message_binds(message: &Message, headers: Option<String>) -> Vec<Bind> {
    let mut binds = vec![id(message), message.contents.topic.as_str().into()];
    binds.extend(value_binds(message, message.contents.key.as_deref()));
    binds.extend([message.contents.event_type.as_deref().into(), message.contents.content_type.as_deref().into()]);
    if message.sequenced {
        binds.push(Bind::Text(before_number(headers)));
        binds.extend(topic_and_key(message));
        binds.push(Bind::from("\"}"));
    } else {
        binds.push(headers.as_deref().into());
    }
    let (after, at) = if message.due == Schedule::Now { (None, None) } else { message.due.micros() };
    binds.extend(value_binds(message, message.contents.payload.as_deref()));
    binds.extend([after.into(), at.into(), message.expires.map(micros).into()]);
    binds
}

/// The headers as JSON, up to the digits of the number.
pub(in crate::store) fn before_number(headers: Option<String>) -> String {
    let mut json = headers.unwrap_or_else(|| "{}".to_owned());
    json.pop();
    let comma = if json.len() > 1 { "," } else { "" };
    format!("{json}{comma}\"{SEQUENCE_HEADER}\":\"")
}

fn due_binds(message: &Message) -> Vec<Bind> {
    let lane = u64::from(message.lane);
    let bytes = u64::from(bytes(message));
    let mut binds = vec![id(message), lane.into(), message.key_hash().into(), bytes.into()];
    if message.due != Schedule::Now {
        let (after, at) = message.due.micros();
        binds.extend([after.into(), at.into()]);
    }
    binds
}
