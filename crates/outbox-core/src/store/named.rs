//! Named leases: one row each, which stays for a day after the lease ends. A deleted row leaves its fence in a row of
//! the outbox, so that fences only grow.
//!
//! No statement takes a time from its caller, only lengths: the database's clock alone decides the end of a lease.

use std::time::Duration;

use sqlx::{Connection as _, MySqlConnection, Row as _, mysql::MySqlRow};

use super::{
    LOCK_WAIT, error_number,
    text::{Hex, Text, sql},
};

/// The row of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its holder, or its last one.
    pub owner: String,
    /// The number of this tenure.
    pub fence: u64,
    /// Microseconds until it ends, by the database's clock; zero or less: it is free.
    pub left: i64,
}

/// Sets the session like the relay's own, but waits at most a second for a transaction that checks the lease. One round
/// trip.
pub async fn prepare(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let settings = super::session::SETTINGS;
    sql!("{settings}, SESSION innodb_lock_wait_timeout = 1", settings).run(conn).await.map(drop)
}

/// Reads a lease, without locks. Primary key, one row.
pub async fn look(conn: &mut MySqlConnection, name: &str) -> Result<Option<Row>, sqlx::Error> {
    let sql = "SELECT owner, fence, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), lease_until) \
               FROM outbox_leases WHERE name = ?";
    let row = sqlx::query(sql).bind(name).fetch_optional(conn).await?;
    row.map(|row| Ok(Row { owner: row.try_get(0)?, fence: row.try_get(1)?, left: row.try_get(2)? })).transpose()
}

/// Fences of an epoch begin at the epoch times this number, so that they compare epoch first. No lease has this number
/// of tenures within a second, the distance of two epochs.
pub(super) const FENCES: u64 = 1_000_000;

/// The row with the highest fence of all deleted ones.
const PAST: &str = "outbox/past";
/// Leases of services that ended a day ago. One that was released is as old as can be.
const ENDED: &str = "lease_until < UTC_TIMESTAMP(6) - INTERVAL 1 DAY AND name NOT LIKE 'outbox/%'";

/// Deletes leases of services that ended a day ago, at most `limit`; returns how many. Leases of the outbox stay: there are few.
/// Reads the table, and leaves out rows that a transaction has locked; primary keys; one transaction.
pub async fn forget(conn: &mut MySqlConnection, limit: u32) -> Result<u64, sqlx::Error> {
    let text = sql!(
        "SELECT name, fence FROM outbox_leases WHERE {ended} LIMIT {limit} FOR UPDATE SKIP LOCKED",
        ended = ENDED,
        limit
    );
    let mut tx = conn.begin().await?;
    let replies = text.run(&mut tx).await?;
    let row = |row: &MySqlRow| -> Result<(String, u64), sqlx::Error> { Ok((row.try_get(0)?, row.try_get(1)?)) };
    let rows: Vec<_> = replies.iter().flat_map(|reply| &reply.rows).map(row).collect::<Result<_, _>>()?;
    let Some(fence) = rows.iter().map(|(_, fence)| *fence).max() else { return tx.rollback().await.map(|()| 0) };
    let text = sql!(
        "INSERT INTO outbox_leases (name, owner, lease_until, fence) VALUES ({past}, '', '1970-01-01', {fence})
            ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence));
        DELETE FROM outbox_leases WHERE name IN ({names})",
        past = ascii(PAST),
        fence,
        names = Text::joined(rows.iter().map(|(name, _)| ascii(name)), ", "),
    );
    text.run(&mut tx).await?;
    tx.commit().await?;
    Ok(rows.len() as u64)
}

/// A name in the character set of its column.
fn ascii(name: &str) -> Text {
    sql!("_ascii {name}", name = Hex(name.as_bytes()))
}

/// Counts the leases that [`forget`] deletes. Reads the table; no lock.
pub async fn forgotten(conn: &mut MySqlConnection) -> Result<u64, sqlx::Error> {
    let replies = sql!("SELECT COUNT(*) FROM outbox_leases WHERE {ended}", ended = ENDED).run(conn).await?;
    let row = replies.first().and_then(|reply| reply.rows.first()).ok_or(sqlx::Error::RowNotFound)?;
    row.try_get::<i64, _>(0).map(i64::unsigned_abs)
}

/// Takes a lease without a row, and returns its fence. That is above those of deleted rows, and not below the first of the epoch: the
/// lease may have been held after the snapshot that was restored. `None` if another owner was faster. Primary key, two
/// rows; reads the last epoch.
pub async fn create(
    conn: &mut MySqlConnection,
    name: &str,
    owner: &str,
    length: Duration,
) -> Result<Option<u64>, sqlx::Error> {
    // Not in one statement: MariaDB refuses an insert (1020) beside a row that is younger than what the statement has read.
    let sql = "SELECT CAST(COALESCE(MAX(epoch), 0) AS UNSIGNED), \
               CAST(COALESCE((SELECT fence FROM outbox_leases WHERE name = ?), 0) AS UNSIGNED) FROM outbox_epochs";
    let (epoch, past): (u64, u64) = sqlx::query_as(sql).bind(PAST).fetch_one(&mut *conn).await?;
    let (fence, micros) = (epoch.saturating_mul(FENCES).max(past) + 1, super::enqueue::micros(length));
    let sql = "INSERT IGNORE INTO outbox_leases (name, owner, lease_until, fence) \
               VALUES (?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, ?)";
    let done = sqlx::query(sql).bind(name).bind(owner).bind(micros).bind(fence).execute(conn).await?;
    Ok((done.rows_affected() == 1).then_some(fence))
}

/// Takes a lease that has ended, or that this owner holds already; its fence becomes `seen + 1`. False: another owner
/// was faster, or is checking the lease in a transaction. Primary key, one row; waits at most a second for its lock.
pub async fn take(
    conn: &mut MySqlConnection,
    name: &str,
    owner: &str,
    seen: u64,
    length: Duration,
) -> Result<bool, sqlx::Error> {
    let sql = "UPDATE outbox_leases SET owner = ?, fence = fence + 1, \
               lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND \
               WHERE name = ? AND fence = ? AND (lease_until <= UTC_TIMESTAMP(6) OR owner = ?)";
    let micros = super::enqueue::micros(length);
    match sqlx::query(sql).bind(owner).bind(micros).bind(name).bind(seen).bind(owner).execute(conn).await {
        Ok(done) => Ok(done.rows_affected() == 1),
        Err(error) if error_number(&error) == Some(LOCK_WAIT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Prolongs a tenure from now on. False: it has ended. Primary key, one row; waits at most a second for its lock.
pub async fn renew(
    conn: &mut MySqlConnection,
    name: &str,
    owner: &str,
    fence: u64,
    length: Duration,
) -> Result<bool, sqlx::Error> {
    let sql = "UPDATE outbox_leases SET lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND \
               WHERE name = ? AND owner = ? AND fence = ? AND lease_until > UTC_TIMESTAMP(6)";
    let micros = super::enqueue::micros(length);
    let done = sqlx::query(sql).bind(micros).bind(name).bind(owner).bind(fence).execute(conn).await?;
    Ok(done.rows_affected() == 1)
}

/// Ends a tenure. False: it had ended before. Primary key, one row; waits at most a second for its lock.
///
/// The row stays, with an end so far back that no step of the database's clock makes the lease look held.
pub async fn release(conn: &mut MySqlConnection, name: &str, owner: &str, fence: u64) -> Result<bool, sqlx::Error> {
    let sql = "UPDATE outbox_leases SET lease_until = '1970-01-01' \
               WHERE name = ? AND owner = ? AND fence = ? AND lease_until > UTC_TIMESTAMP(6)";
    let done = sqlx::query(sql).bind(name).bind(owner).bind(fence).execute(conn).await?;
    Ok(done.rows_affected() == 1)
}

/// Whether a tenure is live; it then stays live until the transaction of `conn` ends. Primary key, one row, shared
/// lock.
pub async fn check(conn: &mut MySqlConnection, name: &str, owner: &str, fence: u64) -> Result<bool, sqlx::Error> {
    let sql = "SELECT 1 FROM outbox_leases WHERE name = ? AND owner = ? AND fence = ? \
               AND lease_until > UTC_TIMESTAMP(6) LOCK IN SHARE MODE";
    let row = sqlx::query(sql).bind(name).bind(owner).bind(fence).fetch_optional(conn).await?;
    Ok(row.is_some())
}
