//! The last failures of messages, for operators. They change nothing of what happens to a message.

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::store::{
    claim::lease::ClaimLease,
    settle::{RECEIPT, Settlement},
    text::{Text, sql},
};

/// Failures that are kept of a message.
const KEPT: u64 = 20;

/// A failure of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureRow {
    /// The number of the attempt. A death that spends none has the number of the next. An operator's retry counts from
    /// 1 again.
    pub attempt: u16,
    /// When it was written: microseconds since 1970.
    pub failed_at: i64,
    /// The relay.
    pub owner: String,
    /// A short code: that of a delayed or dead message, or `taken_over`.
    pub reason: String,
    /// The broker's error text.
    pub error: Option<String>,
}

/// The last failures of a message, the oldest first. Primary key, at most twenty rows, no lock.
pub async fn of(conn: &mut MySqlConnection, id: u64) -> Result<Vec<FailureRow>, sqlx::Error> {
    let sql = "SELECT attempt, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', failed_at), owner, reason, error \
               FROM outbox_attempts \
               WHERE id = ? ORDER BY failed_at, attempt";
    let failure = |row: &MySqlRow| {
        Ok(FailureRow {
            attempt: row.try_get(0)?,
            failed_at: row.try_get(1)?,
            owner: row.try_get(2)?,
            reason: row.try_get(3)?,
            error: row.try_get(4)?,
        })
    };
    sqlx::query(sql).bind(id).fetch_all(conn).await?.iter().map(failure).collect()
}

/// The next slot of a message, whose number is in this column. Not its attempts: they begin again when an operator
/// retries it.
pub(in crate::store) fn slot(id: &'static str) -> Text {
    sql!(
        "COALESCE((SELECT (n.slot + 1) MOD {kept} FROM outbox_attempts n WHERE n.id = {id} ORDER BY n.failed_at DESC \
         LIMIT 1), 0)",
        kept = KEPT,
        id,
    )
}

/// The statements that note the failures of a settlement, behind those that have written them. Delays that spend no
/// attempt are left out: an outage of hours would write a row for each pending message twice a minute. The rows of
/// other tables are found by their primary key, those of this one are locked.
pub(in crate::store) fn note(lease: ClaimLease, settlement: &Settlement) -> Text {
    let spent = settlement.delayed.iter().filter(|it| it.spent).map(|it| (it.id, 0));
    // The attempt that ended without being spent is the next one.
    let dead = settlement.dead.iter().map(|it| (it.id, u64::from(!it.spent)));
    Text::joined([note_in("outbox_delayed", lease, spent), note_in("outbox_dead", lease, dead)], "")
}

fn note_in(table: &'static str, lease: ClaimLease, failures: impl Iterator<Item = (u64, u64)>) -> Text {
    let rows: Vec<Text> = failures.map(|(id, more)| sql!("[{id},{more}]", id, more)).collect();
    if rows.is_empty() {
        return Text::default();
    }
    sql!(
        ";
        REPLACE INTO outbox_attempts (id, slot, attempt, failed_at, owner, reason, error)
            SELECT f.id, {slot}, f.attempts + l.more, UTC_TIMESTAMP(6), c.owner, f.reason, f.error
            FROM outbox_claims c{receipt}
            STRAIGHT_JOIN JSON_TABLE('[{rows}]', '$[*]'
                COLUMNS (id BIGINT UNSIGNED PATH '$[0]', more INT UNSIGNED PATH '$[1]')) l
            STRAIGHT_JOIN {table} f FORCE INDEX (PRIMARY) ON f.lane = c.lane AND f.id = l.id
            WHERE c.claim_id = {claim_id} AND c.lease_token = {lease_token}",
        slot = slot("f.id"),
        receipt = RECEIPT,
        rows = Text::joined(rows, ","),
        table,
        claim_id = lease.claim_id,
        lease_token = lease.lease_token,
    )
}
