//! Reading claimed messages.

use std::collections::{HashMap, HashSet};

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};
use uuid::Uuid;

use crate::store::{
    contents,
    text::{Ids, Reply, Text, listed, sql},
};
use crate::{Contents, REPLAY_HEADER};

/// A message as it is stored.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Its number, in the order of enqueueing.
    pub id: u64,
    /// The id that consumers see.
    pub message_id: Uuid,
    /// The message's contents.
    pub contents: Contents,
    /// Whether the headers can be read. Those of a row that was edited by hand may not, and count as none.
    pub is_readable: bool,
    /// Microseconds since 1970.
    pub created_at_micros: i64,
    /// How long it had been due when it was read, in microseconds, by the database's clock.
    pub waited_micros: i64,
    /// Whether its expiry had passed when it was read.
    pub expired: bool,
    /// Its epoch: 0 before the first recovery.
    pub epoch: u64,
    /// Where a replay sends it, as `sink/name`; `None`: to the destination of its route.
    pub to: Option<String>,
}

/// The job that has sent a message again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Its number.
    pub job_id: u64,
    /// Where it sends its messages, as `sink/name`; `None`: to the destination of their route.
    pub to: Option<String>,
}

/// Reads messages by id, in the order of ids. Primary key, no lock, as many rows as ids; runs of neighbours are read as
/// ranges. The result lacks a message that does not exist. Also reads all epochs, a row for each recovery. One round
/// trip, and a second one as long as there are messages that were replayed.
pub async fn messages(conn: &mut MySqlConnection, ids: &[u64]) -> Result<Vec<Stored>, sqlx::Error> {
    let replies = text(ids).run(conn).await?;
    decoded(conn, ids, &replies).await
}

/// Does the same for messages of a lane that the binary log has shown. The result also lacks those whose pending row
/// reads do not see yet: the transaction of that row may have changed other tables, too, such as a replay.
pub async fn shown(conn: &mut MySqlConnection, lane: u16, ids: &[u64]) -> Result<Vec<Stored>, sqlx::Error> {
    let pending = sql!(
        "SELECT p.id FROM {ids} STRAIGHT_JOIN outbox_pending p FORCE INDEX (PRIMARY) ON p.lane = {lane} \
         AND p.id = l.id",
        ids = listed(ids),
        lane,
    );
    let replies = Text::joined([pending, text(ids)], "; ").run(conn).await?;
    let (pending, replies) = replies.split_first().unzip();
    let rows = pending.into_iter().flat_map(|pending| &pending.rows);
    let pending: HashSet<u64> = rows.map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let mut messages = all(conn, replies.unwrap_or_default()).await?;
    messages.retain(|message| pending.contains(&message.id));
    Ok(messages)
}

/// The number of statements of [`text`].
pub(crate) const STATEMENTS: usize = 2;

pub(crate) fn text(ids: &[u64]) -> Text {
    sql!(
        "SELECT id, message_id, topic, message_key, event_type, content_type, headers, payload,
            TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at),
            TIMESTAMPDIFF(MICROSECOND, COALESCE(GREATEST(due_at, created_at), created_at), UTC_TIMESTAMP(6)),
            expires_at IS NOT NULL AND expires_at <= UTC_TIMESTAMP(6)
            FROM outbox_messages WHERE {ids} ORDER BY id;
        SELECT first_id, epoch FROM outbox_epochs
            UNION ALL SELECT CAST(0 AS UNSIGNED), CAST(0 AS UNSIGNED) FROM (SELECT id FROM outbox_replays
                LIMIT 1) AS replays",
        ids = id_list("id", ids),
    )
}

pub(crate) async fn decoded(
    conn: &mut MySqlConnection,
    ids: &[u64],
    replies: &[Reply],
) -> Result<Vec<Stored>, sqlx::Error> {
    let messages = all(conn, replies).await?;
    // A message that is missing dies. So a second answer must name it: a cut one has fewer rows.
    if messages.len() < ids.len() && messages.len() + missing(conn, ids).await? < ids.len() {
        return Err(sqlx::Error::Protocol("the server cut the answer to a read, as sql_select_limit does".to_owned()));
    }
    Ok(messages)
}

async fn all(conn: &mut MySqlConnection, replies: &[Reply]) -> Result<Vec<Stored>, sqlx::Error> {
    let [messages, epochs] = replies else {
        return Err(sqlx::Error::Protocol("the server did not answer both statements".to_owned()));
    };
    let epochs = epochs.rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let epochs: Vec<(u64, u64)> = epochs.collect::<Result<_, sqlx::Error>>()?;
    // No recovery has the epoch 0. (A NULL would make the columns decimal on MariaDB.)
    let has_replays = epochs.contains(&(0, 0));
    let mut messages: Vec<_> = messages.rows.iter().map(|row| stored(row, &epochs)).collect::<Result<_, _>>()?;
    if has_replays && !messages.is_empty() {
        mark(conn, &mut messages).await?;
    }
    Ok(messages)
}

/// The number of ids without a message. Primary key, no lock, at most a row for each id.
async fn missing(conn: &mut MySqlConnection, ids: &[u64]) -> Result<usize, sqlx::Error> {
    let text = sql!(
        "SELECT l.id FROM {ids} LEFT JOIN outbox_messages m ON m.id = l.id WHERE m.id IS NULL",
        ids = listed(ids),
    );
    Ok(text.run(conn).await?.iter().map(|reply| reply.rows.len()).sum())
}

/// Adds the header and the destination of those messages that a job has sent again.
async fn mark(conn: &mut MySqlConnection, messages: &mut [Stored]) -> Result<(), sqlx::Error> {
    let ids: Vec<u64> = messages.iter().map(|message| message.id).collect();
    let mut marks = marks(conn, &ids).await?;
    for message in messages {
        if let Some(Mark { job_id, to }) = marks.remove(&message.id) {
            message.to = to;
            let headers = &mut message.contents.headers;
            headers.retain(|(name, _)| name != REPLAY_HEADER);
            headers.push((REPLAY_HEADER.to_owned(), job_id.to_string()));
        }
    }
    Ok(())
}

/// The jobs that have sent these messages again, by message. Primary key, no lock.
pub(in crate::store) async fn marks(
    conn: &mut MySqlConnection,
    ids: &[u64],
) -> Result<HashMap<u64, Mark>, sqlx::Error> {
    let text = sql!("SELECT id, job_id, destination FROM outbox_replays WHERE {ids}", ids = id_list("id", ids),);
    let mark = |row: &MySqlRow| Ok((row.try_get(0)?, Mark { job_id: row.try_get(1)?, to: row.try_get(2)? }));
    text.run(conn).await?.iter().flat_map(|reply| &reply.rows).map(mark).collect()
}

fn stored(row: &MySqlRow, epochs: &[(u64, u64)]) -> Result<Stored, sqlx::Error> {
    let id = row.try_get(0)?;
    let (contents, is_readable) = contents::of(row, 2)?;
    Ok(Stored {
        id,
        message_id: contents::uuid(row.try_get(1)?)?,
        contents,
        is_readable,
        created_at_micros: row.try_get(8)?,
        waited_micros: row.try_get(9)?,
        expired: row.try_get::<i64, _>(10)? != 0,
        epoch: epochs.iter().filter(|(first, _)| *first <= id).map(|(_, epoch)| *epoch).max().unwrap_or(0),
        to: None,
    })
}

/// Shortest run of neighbours that is written as a range.
const RUN: usize = 4;

/// `(column BETWEEN … AND … OR column IN (…))` for sorted ids. A range names neighbours only, without a hole in which a
/// row that was committed late could hide. Its last id is named separately, because a locking read of a range goes one
/// row too far. That row is then one of the statement's own, not another claim's.
pub(crate) fn id_list(column: &'static str, ids: &[u64]) -> Text {
    let mut ranges = Vec::new();
    let mut singles = Vec::new();
    for run in ids.chunk_by(|a, b| a + 1 == *b) {
        match run {
            [first, .., end, last] if run.len() >= RUN => {
                ranges.push(sql!("{column} BETWEEN {first} AND {end} OR ", column, first = *first, end = *end));
                singles.push(*last);
            }
            _ => singles.extend_from_slice(run),
        }
    }
    // `IN ()` is no SQL, and 0 is no id.
    if singles.is_empty() {
        singles.push(0);
    }
    sql!("({ranges}{column} IN ({singles}))", ranges = Text::joined(ranges, ""), column, singles = Ids(&singles))
}
