//! Finds one message in all tables, for operators.

use sqlx::{AssertSqlSafe, MySqlConnection, Row as _, mysql::MySqlRow};
use uuid::Uuid;

use crate::store::{
    claim::{
        queue::UNDATED,
        read::{self, Mark},
        tail::ClaimKind,
    },
    contents::uuid,
    operate::{
        controls::{self, ControlRow},
        stats::first_of_the_last_minute,
    },
    settle::attempts::{self, FailureRow},
};

/// All rows about one message at one moment. Times are microseconds since 1970, by the database's clock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundMessage {
    /// The number of the message in the tables.
    pub id: u64,
    /// That moment.
    pub now: i64,
    /// Its row in `outbox_messages`.
    pub message: Option<MessageRow>,
    /// The W3C trace in which it was enqueued, 32 hexadecimal digits.
    pub trace_id: Option<String>,
    /// Its row in `outbox_pending`, `outbox_delayed` or `outbox_dead`; more than one only after a change by hand.
    pub states: Vec<StateRow>,
    /// The claims that list it.
    pub claims: Vec<ClaimRow>,
    /// Its receipts, the oldest first.
    pub receipts: Vec<ReceiptRow>,
    /// Its last failures, the oldest first.
    pub failures: Vec<FailureRow>,
    /// The first message of its key that holds it back.
    pub ahead: Option<u64>,
    /// Pending messages of its lane with a lower id, at most [`MAX_BEFORE`].
    pub before: u64,
    /// When a message of its lane was sent last, if that was in the last minute.
    pub last_sent: Option<i64>,
    /// Owners of a live claim in its lane.
    pub owners: u64,
    /// The pause of its lane.
    pub paused: Option<ControlRow>,
    /// The job that has sent it again.
    pub mark: Option<Mark>,
}

/// A row of `outbox_messages`, without key, headers and payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRow {
    /// The id that consumers see.
    pub message_id: Uuid,
    /// The topic.
    pub topic: String,
    /// The kind of event.
    pub event_type: Option<String>,
    /// The time of the enqueue.
    pub created_at: i64,
    /// The time for which it was scheduled.
    pub due_at: Option<i64>,
    /// The time after which it is not published.
    pub expires_at: Option<i64>,
}

impl MessageRow {
    /// From six columns, from this one on.
    pub(in crate::store) fn of(row: &MySqlRow, first: usize) -> Result<Self, sqlx::Error> {
        Ok(Self {
            message_id: uuid(row.try_get(first)?)?,
            topic: row.try_get(first + 1)?,
            event_type: row.try_get(first + 2)?,
            created_at: row.try_get(first + 3)?,
            due_at: row.try_get(first + 4)?,
            expires_at: row.try_get(first + 5)?,
        })
    }
}

/// The table of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateTable {
    /// `outbox_pending`
    Pending,
    /// `outbox_delayed`
    Delayed,
    /// `outbox_dead`
    Dead,
}

impl StateTable {
    pub(in crate::store) fn name(self) -> &'static str {
        match self {
            Self::Pending => "outbox_pending",
            Self::Delayed => "outbox_delayed",
            Self::Dead => "outbox_dead",
        }
    }

    /// The seven columns of a [`StateRow`] in a row `t`.
    pub(in crate::store) fn columns(self) -> String {
        let rest = match self {
            Self::Pending => "NULL, FALSE, '', NULL".to_owned(),
            Self::Delayed => format!(
                "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', NULLIF(t.due_at, {UNDATED})), t.holds_key = 1, t.reason, \
                 t.error"
            ),
            Self::Dead => {
                "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', t.died_at), t.holds_key = 1, t.reason, t.error".to_owned()
            }
        };
        format!("t.lane, t.key_hash, t.attempts, {rest}")
    }
}

/// A row that says what happens to a message next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateRow {
    /// Its table.
    pub table: StateTable,
    /// The lane.
    pub lane: u16,
    /// The hash of its key; 0 means no order.
    pub key_hash: u64,
    /// The attempts spent.
    pub attempts: u16,
    /// When a delayed message is due, or a dead one died. `None` if it is pending, or in the queue of its key.
    pub at: Option<i64>,
    /// Whether later messages of its key wait for it.
    pub holds_key: bool,
    /// The reason; empty if it is pending.
    pub reason: String,
    /// The last error.
    pub error: Option<String>,
}

impl StateRow {
    /// From the first seven columns, [`StateTable::columns`].
    pub(in crate::store) fn of(table: StateTable, row: &MySqlRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            table,
            lane: row.try_get(0)?,
            key_hash: row.try_get(1)?,
            attempts: row.try_get(2)?,
            at: row.try_get(3)?,
            holds_key: row.try_get(4)?,
            reason: row.try_get(5)?,
            error: row.try_get(6)?,
        })
    }
}

/// A claim that lists the message, or a tail up to a mark above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRow {
    /// The owner.
    pub owner: String,
    /// When it was claimed. A tail: when it was written last.
    pub claimed_at: i64,
    /// The end of its lease.
    pub lease_until: i64,
    /// Its kind. Under a tail the message may be in flight, or may be taken next.
    pub kind: ClaimKind,
}

/// A broker's confirmation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptRow {
    /// The relay that published the message.
    pub owner: String,
    /// When the confirmation was written.
    pub sent_at: i64,
    /// Its place at the broker.
    pub place: Option<String>,
}

/// In microseconds: the difference of two clocks that one after the other were the database's.
const CLOCKS: i64 = 86_400_000_000;

/// The largest [`FoundMessage::before`].
pub const MAX_BEFORE: u64 = 10_000;

/// The number of the message with this id. Unique key, no lock.
pub async fn number(conn: &mut MySqlConnection, message_id: Uuid) -> Result<Option<u64>, sqlx::Error> {
    let sql = "SELECT id FROM outbox_messages WHERE message_id = ?";
    sqlx::query_scalar(sql).bind(message_id.as_bytes().as_slice()).fetch_optional(conn).await
}

/// Reads all rows about a message in one snapshot. No lock. Reads one row per lane and table, the live claims, up to
/// ten thousand rows of its lane, and all receipts. If it fails, end the connection: its transaction is open.
pub async fn find(conn: &mut MySqlConnection, id: u64) -> Result<FoundMessage, sqlx::Error> {
    snapshot(conn).await?;
    let now = sqlx::query_scalar("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))");
    let mut found = FoundMessage { id, now: now.fetch_one(&mut *conn).await?, ..FoundMessage::default() };
    found.message = message(conn, id).await?;
    found.trace_id = trace(conn, id).await?;
    found.states = states(conn, &[id]).await?.into_iter().map(|(_, state)| state).collect();
    found.claims = claims(conn, id).await?;
    found.failures = attempts::of(conn, id).await?;
    found.mark = read::marks(conn, &[id]).await?.remove(&id);
    if let Some(message) = &found.message {
        found.receipts = receipts(conn, id, message.created_at - CLOCKS).await?;
    }
    if let Some(state) = found.states.first().cloned() {
        if state.key_hash != 0 {
            found.ahead = ahead(conn, id, &state).await?;
        }
        (found.before, found.last_sent, found.owners) = lane(conn, id, state.lane).await?;
        let lane = state.lane.to_string();
        found.paused = controls::paused(conn).await?.into_iter().find(|it| it.kind == "lane" && it.name == lane);
    }
    sqlx::raw_sql("COMMIT").execute(conn).await?;
    Ok(found)
}

/// Begins a transaction that sees all tables at one moment.
pub(in crate::store) async fn snapshot(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let sql = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";
    sqlx::raw_sql(sql).execute(conn).await.map(drop)
}

/// The row of a message. Primary key, no lock.
pub async fn message(conn: &mut MySqlConnection, id: u64) -> Result<Option<MessageRow>, sqlx::Error> {
    let sql = "SELECT message_id, topic, event_type, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at), \
               TIMESTAMPDIFF(MICROSECOND, '1970-01-01', due_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', expires_at) \
               FROM outbox_messages WHERE id = ?";
    sqlx::query(sql).bind(id).fetch_optional(conn).await?.map(|row| MessageRow::of(&row, 0)).transpose()
}

/// The trace in which a message was enqueued. Primary key, no lock; by a view, because the account may not read
/// headers. `None` also if the server cannot read them, such as JSON of more than a hundred levels: the rest of the
/// answer is wanted the more.
async fn trace(conn: &mut MySqlConnection, id: u64) -> Result<Option<String>, sqlx::Error> {
    let sql = "SELECT CAST(trace_id AS CHAR) FROM outbox_listed_messages WHERE id = ?";
    match sqlx::query_scalar(sql).bind(id).fetch_optional(conn).await {
        Err(sqlx::Error::Database(_)) => Ok(None),
        found => Ok(found?.flatten()),
    }
}

/// The rows of states of these messages. One seek per message, lane and table, no lock: the lanes are found by a loose
/// scan of the primary key.
pub(in crate::store) async fn states(
    conn: &mut MySqlConnection,
    ids: &[u64],
) -> Result<Vec<(u64, StateRow)>, sqlx::Error> {
    let mut states = Vec::new();
    let ids = serde_json::json!(ids).to_string();
    for table in [StateTable::Pending, StateTable::Delayed, StateTable::Dead] {
        let sql = format!(
            "SELECT {columns}, t.id FROM (SELECT lane FROM {name} GROUP BY lane) n \
             STRAIGHT_JOIN JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) l \
             STRAIGHT_JOIN {name} t FORCE INDEX (PRIMARY) ON t.lane = n.lane AND t.id = l.id",
            columns = table.columns(),
            name = table.name(),
        );
        let rows = sqlx::query(AssertSqlSafe(sql)).bind(&ids).fetch_all(&mut *conn).await?;
        for row in &rows {
            states.push((row.try_get(7)?, StateRow::of(table, row)?));
        }
    }
    Ok(states)
}

async fn claims(conn: &mut MySqlConnection, id: u64) -> Result<Vec<ClaimRow>, sqlx::Error> {
    let sql = "SELECT owner, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', claimed_at), \
               TIMESTAMPDIFF(MICROSECOND, '1970-01-01', lease_until), CAST(kind AS UNSIGNED) \
               FROM outbox_claimed_messages WHERE id = ? \
               ORDER BY claim_id";
    let rows = sqlx::query(sql).bind(id).fetch_all(conn).await?;
    let claim = |row: &MySqlRow| {
        let claimed_at = row.try_get(1)?;
        let lease_until = row.try_get(2)?;
        let kind = ClaimKind::of(row.try_get(3)?);
        Ok(ClaimRow { owner: row.try_get(0)?, claimed_at, lease_until, kind })
    };
    rows.iter().map(claim).collect()
}

/// Whether one of the newest thousand receipts has a place that begins so: a destination is asked for after it has
/// refused a message. Primary key, at most a thousand rows with their receipts; no lock.
pub async fn has_lately_sent(conn: &mut MySqlConnection, place: &str) -> Result<bool, sqlx::Error> {
    let place = serde_json::to_string(place).map_err(|error| sqlx::Error::Encode(error.into()))?;
    let sql = "SELECT 1 FROM outbox_sent WHERE receipt_id > (SELECT GREATEST(COALESCE(MAX(receipt_id), 0), \
               1000) - 1000 FROM outbox_sent) \
               AND LOCATE(?, receipts) > 0 ORDER BY receipt_id DESC LIMIT 1";
    let found = sqlx::query(sql).bind(place.strip_suffix('"')).fetch_optional(conn).await?;
    Ok(found.is_some())
}

/// Reads all receipts, because there is no index on their time. Only those whose text has the digits of the number are
/// read as JSON, and those that list the message are taken apart. Without its
/// row in `outbox_messages` none is read.
async fn receipts(conn: &mut MySqlConnection, id: u64, since: i64) -> Result<Vec<ReceiptRow>, sqlx::Error> {
    let sql = "SELECT s.owner, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.sent_at), \
               IF(JSON_VALID(s.receipts), JSON_UNQUOTE(JSON_EXTRACT(s.receipts, CONCAT('$[', m.position - 1, ']'))), \
               NULL) \
               FROM outbox_sent s STRAIGHT_JOIN JSON_TABLE(IF(JSON_VALID(s.message_ids), s.message_ids, '[]'), '$[*]' \
               COLUMNS (position FOR ORDINALITY, id BIGINT UNSIGNED PATH '$')) m \
               WHERE s.sent_at >= TIMESTAMPADD(MICROSECOND, ?, '1970-01-01') AND LOCATE(?, s.message_ids) \
               AND IF(JSON_VALID(s.message_ids), JSON_CONTAINS(s.message_ids, CAST(? AS CHAR)), 0) AND m.id = ? \
               ORDER BY s.receipt_id";
    let rows = sqlx::query(sql).bind(since).bind(id.to_string()).bind(id).bind(id).fetch_all(conn).await?;
    let receipt =
        |row: &MySqlRow| Ok(ReceiptRow { owner: row.try_get(0)?, sent_at: row.try_get(1)?, place: row.try_get(2)? });
    rows.iter().map(receipt).collect()
}

/// The smallest id of the key that is delayed, dead or claimed, and holds this one back. Ranges of `outbox_delayed_key`
/// and `outbox_dead_key`, and the claimed rows.
async fn ahead(conn: &mut MySqlConnection, id: u64, state: &StateRow) -> Result<Option<u64>, sqlx::Error> {
    let mut first = None;
    for sql in [
        "SELECT MIN(id) FROM outbox_delayed FORCE INDEX (outbox_delayed_key) \
         WHERE lane = ? AND holds_key = 1 AND key_hash = ? AND id < ?",
        "SELECT MIN(id) FROM outbox_dead FORCE INDEX (outbox_dead_key) WHERE lane = ? AND holds_key = 1 \
         AND key_hash = ? AND id < ?",
        "SELECT MIN(p.id) FROM outbox_claimed_messages c STRAIGHT_JOIN outbox_pending p FORCE INDEX (PRIMARY) \
         ON p.lane = c.lane AND p.id = c.id WHERE p.lane = ? AND p.key_hash = ? AND p.id < ?",
    ] {
        let holder = sqlx::query_scalar(sql).bind(state.lane).bind(state.key_hash).bind(id);
        let holder: Option<u64> = holder.fetch_one(&mut *conn).await?;
        first = first.into_iter().chain(holder).min();
    }
    Ok(first)
}

/// The messages before this one, when the lane sent one in the last minute, and the owners of live claims.
async fn lane(conn: &mut MySqlConnection, id: u64, lane: u16) -> Result<(u64, Option<i64>, u64), sqlx::Error> {
    let sql = "SELECT COUNT(*) FROM (SELECT 1 FROM outbox_pending WHERE lane = ? AND id < ? LIMIT ?) t";
    let before: i64 = sqlx::query_scalar(sql).bind(lane).bind(id).bind(MAX_BEFORE).fetch_one(&mut *conn).await?;
    let first = first_of_the_last_minute(conn).await?;
    let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MAX(sent_at)) FROM outbox_sent \
               WHERE receipt_id >= ? AND lane = ? AND message_ids <> '[]'";
    let last_sent = sqlx::query_scalar(sql).bind(first).bind(lane).fetch_one(&mut *conn).await?;
    let sql = "SELECT COUNT(DISTINCT owner) FROM outbox_claims WHERE lane = ? AND lease_until >= UTC_TIMESTAMP(6)";
    let owners: i64 = sqlx::query_scalar(sql).bind(lane).fetch_one(&mut *conn).await?;
    Ok((before.unsigned_abs(), last_sent, owners.unsigned_abs()))
}
