//! Writing messages, on the service's connection and in its transaction.

pub mod backlog;
#[cfg(feature = "test")]
pub(crate) mod enqueued;
pub mod prepare;
pub mod sequence;

use sqlx::{MySqlConnection, mysql::MySqlArguments, query::Query};

use crate::store::{
    NO_SUCH_SAVEPOINT, OUT_OF_RANGE, TRANSACTION_OPEN, error_number,
    text::{Hex, Text, Utf8, sql},
};
use crate::{
    Bind,
    message::{Message, Schedule},
};

/// Most messages of one text.
const MOST: usize = 1000;

/// Whether the server has the transaction in which messages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// It has.
    Yes,
    /// It has ended it: no message that was written is ever sent.
    No,
    /// The session does not commit by itself, so a savepoint proves nothing; [`is_open`] does. Nothing was written.
    Unknown,
}

/// The proof that the server has a transaction, whatever the client believes: without one SAVEPOINT is a no-op, and the
/// return to it an error. With `autocommit = 0` a savepoint needs no transaction, so the last statement fails.
/// With `sql_select_limit = 0` a SELECT in its place would not be evaluated.
///
/// The savepoint stays, so that [`undo`] can take back a message that was written without its pending row.
const PROOF: &str =
    "SAVEPOINT outbox_enqueue; ROLLBACK TO SAVEPOINT outbox_enqueue; SET @outbox_open = EXP(1000 * (1 - @@autocommit))";

/// A second savepoint, released between the rows of the messages and those that make them due. A Galera node may roll a
/// transaction back between two statements of a text without an error. The next statement would then commit by itself,
/// and COMMIT would succeed; RELEASE fails. (MariaDB 10.11, two nodes that update three rows, 60 s each: without it 9
/// of 12,887 commits were lost, with it none of 14,202. It takes 15 µs on MySQL 9.7, 5 µs on MariaDB: medians of four
/// pairs.)
const MARK: &str = "SAVEPOINT outbox_rows";
const MARK_IS_THERE: &str = "RELEASE SAVEPOINT outbox_rows";

/// A factor 1 that is an error ([`OUT_OF_RANGE`]) without a transaction, for the first row of each INSERT. MariaDB
/// alone has the variable, and takes the comment for text: there such a rollback leaves no row. On MySQL the rows
/// before [`MARK_IS_THERE`], or those after it, may stay.
const OPEN: &str = " /*M! * CAST(EXP(1000 * (1 - @@in_transaction)) AS UNSIGNED)*/";

/// Sets the savepoint and returns whether there is a transaction. One round trip; two with `autocommit = 0`.
pub async fn savepoint(conn: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
    match proven(sqlx::raw_sql(PROOF).execute(&mut *conn).await.map(drop))? {
        Open::Unknown => is_open(conn).await,
        known => Ok(known == Open::Yes),
    }
}

fn proven(done: Result<(), sqlx::Error>) -> Result<Open, sqlx::Error> {
    match done {
        Ok(()) => Ok(Open::Yes),
        Err(error) => match error_number(&error) {
            Some(NO_SUCH_SAVEPOINT) => Ok(Open::No),
            Some(OUT_OF_RANGE) => Ok(Open::Unknown),
            _ => Err(error),
        },
    }
}

/// Whether the server has an open transaction: only outside of one it accepts SET TRANSACTION. Locks nothing.
pub async fn is_open(conn: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
    match sqlx::raw_sql("SET TRANSACTION READ WRITE").execute(conn).await {
        Ok(_) => Ok(false),
        Err(error) if error_number(&error) == Some(TRANSACTION_OPEN) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Rolls back all writes since [`savepoint`].
pub async fn undo(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("ROLLBACK TO SAVEPOINT outbox_enqueue").execute(conn).await.map(drop)
}

/// The largest packet that the server takes, in bytes.
pub async fn max_allowed_packet(conn: &mut MySqlConnection) -> Result<u64, sqlx::Error> {
    sqlx::query_scalar("SELECT CAST(@@max_allowed_packet AS UNSIGNED)").fetch_one(conn).await
}

/// Whether a message with this id exists. Main use: to find the duplicate after a duplicate-key error. Index
/// `outbox_messages_message_id`, no lock, one row.
pub async fn exists(conn: &mut MySqlConnection, message: &Message) -> Result<bool, sqlx::Error> {
    let sql = "SELECT 1 FROM outbox_messages WHERE message_id = ?";
    let found = sqlx::query(sql).bind(message.message_id.as_bytes().as_slice()).fetch_optional(conn).await?;
    Ok(found.is_some())
}

/// The number of first messages for one text: together at most `bytes`, but at least one.
#[must_use]
pub fn chunk(messages: &[Message], bytes: usize) -> usize {
    let mut sum = 0;
    let fits = |message: &&Message| {
        sum += message.size();
        sum <= bytes
    };
    messages.iter().take(MOST).take_while(fits).count().max(1)
}

/// Inserts messages and the rows that make them due, in one round trip. Unless `is_proven`, the proof of a transaction
/// comes first, as in [`savepoint`]. Afterwards `is_proven` says whether there is a savepoint to return to. The rows of
/// one INSERT, whose number is known beforehand, get ids that are `auto_increment_increment` apart, from
/// `LAST_INSERT_ID()` on. A sequenced message must be alone.
///
/// Locks only the new rows (of a sequenced message also that of its key); the second INSERT goes to the end of its
/// primary key.
pub async fn insert(
    conn: &mut MySqlConnection,
    messages: &[Message],
    headers: &[Option<String>],
    is_proven: &mut bool,
) -> Result<Open, sqlx::Error> {
    let proof = if *is_proven { Text::default() } else { sql!("{proof}; ", proof = PROOF) };
    let text = sql!("{proof}{insert}", proof, insert = insert_text(messages, headers));
    let mut replies = Vec::new();
    let open = proven(text.run_into(conn, &mut replies).await);
    // If not even the first statement was answered, the savepoint of this name is that of an earlier call.
    *is_proven |= matches!(open, Ok(Open::Yes) | Err(_)) && !replies.is_empty();
    open
}

pub(in crate::store) fn insert_text(messages: &[Message], headers: &[Option<String>]) -> Text {
    let (due, scheduled): (Vec<_>, Vec<_>) = (0..).zip(messages).partition(|(_, message)| message.due == Schedule::Now);
    let due = due_rows(due).map(|(row, _)| sql!("({row})", row));
    let scheduled =
        due_rows(scheduled).map(|(row, message)| sql!("({row}, {due_at}, 'scheduled')", row, due_at = due_at(message)));
    sql!(
        "{mark}; {number}INSERT INTO outbox_messages
            (message_id, topic, message_key, event_type, content_type, headers, payload, created_at, due_at, expires_at)
            VALUES {messages}; {mark_is_there}{due}{scheduled}",
        mark = MARK,
        number = messages.iter().find(|message| message.sequenced).map_or_else(Text::default, take_number),
        messages = Text::joined((0..).zip(messages.iter().zip(headers)).map(message_row), ", "),
        mark_is_there = MARK_IS_THERE,
        due = rows("; INSERT INTO outbox_pending (id, lane, key_hash, bytes) VALUES ", due),
        scheduled = rows("; INSERT INTO outbox_delayed (id, lane, key_hash, bytes, due_at, reason) VALUES ", scheduled),
    )
}

fn message_row((position, (message, headers)): (u64, (&Message, &Option<String>))) -> Text {
    let headers = if message.sequenced {
        let before = prepare::before_number(headers.clone());
        Some(sql!("CONCAT({before}, LAST_INSERT_ID(), '\"}}')", before = Utf8(&before)))
    } else {
        headers.as_deref().map(|headers| sql!("{headers}", headers = Utf8(headers)))
    };
    sql!(
        "({id}, {topic}, {key}, {event_type}, {content_type}, {headers}, {payload}, UTC_TIMESTAMP(6){open}, {due_at}, \
         {expires_at})",
        id = Hex(message.message_id.as_bytes()),
        topic = Utf8(&message.contents.topic),
        key = message.contents.key.as_deref().map(Hex),
        event_type = message.contents.event_type.as_deref().map(Utf8),
        content_type = message.contents.content_type.as_deref().map(Utf8),
        headers,
        payload = message.contents.payload.as_deref().map(Hex),
        open = if position == 0 { sql!(" + INTERVAL 0{open} SECOND", open = OPEN) } else { Text::default() },
        due_at = (message.due != Schedule::Now).then(|| due_at(message)),
        expires_at = message.expires.map(|after| in_future(micros(after))),
    )
}

fn due_at(message: &Message) -> Text {
    match message.due.micros() {
        (Some(after), _) => in_future(after),
        (None, at) => sql!("'1970-01-01' + INTERVAL {at} MICROSECOND", at = at.unwrap_or(0)),
    }
}

fn in_future(micros: i64) -> Text {
    sql!("UTC_TIMESTAMP(6) + INTERVAL {micros} MICROSECOND", micros)
}

/// The columns of the rows that make messages due, each with its message.
fn due_rows(messages: Vec<(u64, &Message)>) -> impl Iterator<Item = (Text, &Message)> {
    messages.into_iter().enumerate().map(|(index, (position, message))| {
        let row = sql!(
            "LAST_INSERT_ID() + {position} * @@auto_increment_increment, {lane}, {key_hash}, {bytes}{open}",
            position,
            lane = message.lane,
            key_hash = message.key_hash(),
            bytes = bytes(message),
            open = if index == 0 { OPEN } else { "" },
        );
        (row, message)
    })
}

/// A statement that inserts rows; none for no rows.
fn rows(insert: &'static str, rows: impl Iterator<Item = Text>) -> Text {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return Text::default();
    }
    sql!("{insert}{rows}", insert, rows = Text::joined(rows, ", "))
}

/// As [`crate::store::enqueue::sequence::take`]: the number is in `LAST_INSERT_ID()` for the next statement.
fn take_number(message: &Message) -> Text {
    sql!(
        "INSERT INTO outbox_key_sequence (topic, message_key, last_sequence)
            VALUES ({topic}, {key}, LAST_INSERT_ID(1{open}))
            ON DUPLICATE KEY UPDATE last_sequence = LAST_INSERT_ID(last_sequence + 1); ",
        open = OPEN,
        topic = Utf8(&message.contents.topic),
        key = Hex(message.contents.key.as_deref().unwrap_or_default()),
    )
}

/// Inserts one large message by the prepared statements of `Outbox::prepare`: a text would have twice its size. One
/// round trip for each statement.
pub async fn insert_large(
    conn: &mut MySqlConnection,
    message: &Message,
    headers: Option<String>,
) -> Result<(), sqlx::Error> {
    for statement in prepare::statements(message, headers) {
        let query = statement.binds.into_iter().fold(sqlx::query(statement.sql), bind);
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

type EnqueueText = Query<'static, sqlx::MySql, MySqlArguments>;

fn bind(query: EnqueueText, bind: Bind) -> EnqueueText {
    match bind {
        Bind::Null => query.bind(None::<u64>),
        Bind::Bytes(bytes) => query.bind(bytes),
        Bind::Text(text) => query.bind(text),
        Bind::Unsigned(number) => query.bind(number),
        Bind::Signed(number) => query.bind(number),
    }
}

pub(in crate::store) fn bytes(message: &Message) -> u32 {
    u32::try_from(message.size()).unwrap_or(u32::MAX)
}

pub(crate) fn micros(time: std::time::Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_made_due_after_the_proof_that_its_message_is_there() {
        for message in [Message::new("t", ""), Message::new("t", "").delay(std::time::Duration::from_secs(1))] {
            let text = insert_text(&[message], &[None]).into_sql_str();
            let statements: Vec<&str> = text.as_str().split("; ").collect();
            let starts =
                ["SAVEPOINT outbox_rows", "INSERT INTO outbox_messages", "RELEASE SAVEPOINT outbox_rows", "INSERT"];
            let starts =
                statements.len() == 4 && statements.iter().zip(starts).all(|(it, start)| it.starts_with(start));
            assert!(starts, "{statements:?}");
        }
    }

    #[test]
    fn a_chunk_is_within_the_limit_of_bytes_and_at_least_one_message() {
        let messages: Vec<_> = (0..70).map(|_| Message::new("t", [0; 100])).collect();
        assert_eq!([1_000_000, 1_700, 10].map(|bytes| chunk(&messages, bytes)), [70, 17, 1]);
    }
}
