//! One message as statements with binds, for other libraries. They write the same rows as [`super::enqueue`]; a test
//! compares.

use super::enqueue::{bytes, micros};
use crate::{
    Bind, Statement,
    message::{Message, Schedule},
    sequence::SEQUENCE_HEADER,
};

/// Like [`super::sequence::take`]: the number is in `LAST_INSERT_ID()` for the next statement.
const TAKE_NUMBER: &str = "INSERT INTO outbox_key_sequence (topic, message_key, last_sequence) \
    VALUES (?, ?, LAST_INSERT_ID(1)) ON DUPLICATE KEY UPDATE last_sequence = LAST_INSERT_ID(last_sequence + 1)";

const INSERT_MESSAGE: &str = "INSERT INTO outbox_messages \
    (message_id, topic, message_key, event_type, content_type, headers, payload, created_at, due_at, expires_at) \
    VALUES (?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6), \
    COALESCE(UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, '1970-01-01' + INTERVAL ? MICROSECOND), \
    UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)";

/// The headers are text before and after the number.
const INSERT_SEQUENCED: &str = "INSERT INTO outbox_messages \
    (message_id, topic, message_key, event_type, content_type, headers, payload, created_at, due_at, expires_at) \
    VALUES (?, ?, ?, ?, ?, CONCAT(?, LAST_INSERT_ID(), ?), ?, UTC_TIMESTAMP(6), \
    COALESCE(UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, '1970-01-01' + INTERVAL ? MICROSECOND), \
    UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)";

const INSERT_PENDING: &str =
    "INSERT INTO outbox_pending (id, lane, key_hash, bytes) VALUES (LAST_INSERT_ID(), ?, ?, ?)";

/// One expression for "after this number of microseconds" and "at this time": the first operand is null in the second
/// case.
const INSERT_SCHEDULED: &str = "INSERT INTO outbox_delayed (id, lane, key_hash, bytes, due_at, reason) \
    VALUES (LAST_INSERT_ID(), ?, ?, ?, COALESCE(UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, \
    '1970-01-01' + INTERVAL ? MICROSECOND), 'scheduled')";

pub(crate) fn statements(message: &Message, headers: Option<String>) -> Vec<Statement> {
    let mut statements = Vec::new();
    let key = Bind::from(message.contents.key.as_deref());
    if message.sequenced {
        statements
            .push(Statement { sql: TAKE_NUMBER, binds: vec![message.contents.topic.as_str().into(), key.clone()] });
    }
    let mut binds = vec![
        message.message_id.as_bytes().as_slice().into(),
        message.contents.topic.as_str().into(),
        key,
        message.contents.event_type.as_deref().into(),
        message.contents.content_type.as_deref().into(),
    ];
    if message.sequenced {
        binds.extend([Bind::Text(before_number(headers)), Bind::from("\"}")]);
    } else {
        binds.push(headers.as_deref().into());
    }
    let (after, at) = if message.due == Schedule::Now { (None, None) } else { message.due.micros() };
    binds.extend([
        message.contents.payload.as_deref().into(),
        after.into(),
        at.into(),
        message.expires.map(micros).into(),
    ]);
    let sql = if message.sequenced { INSERT_SEQUENCED } else { INSERT_MESSAGE };
    statements.push(Statement { sql, binds });
    statements.push(due(message));
    statements
}

/// The headers as JSON, up to the digits of the number.
pub(super) fn before_number(headers: Option<String>) -> String {
    let mut json = headers.unwrap_or_else(|| "{}".to_owned());
    json.pop();
    let comma = if json.len() > 1 { "," } else { "" };
    format!("{json}{comma}\"{SEQUENCE_HEADER}\":\"")
}

fn due(message: &Message) -> Statement {
    let bytes = u64::from(bytes(message));
    let mut binds = vec![u64::from(message.lane).into(), message.key_hash().into(), bytes.into()];
    if message.due == Schedule::Now {
        return Statement { sql: INSERT_PENDING, binds };
    }
    let (after, at) = message.due.micros();
    binds.extend([after.into(), at.into()]);
    Statement { sql: INSERT_SCHEDULED, binds }
}
