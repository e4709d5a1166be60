//! Named leases: one row each, which stays when the lease ends, so that its fence only grows.
//!
//! No statement takes a time from its caller, only lengths: the database's clock alone decides the end of a lease.

use std::time::Duration;

use sqlx::{MySqlConnection, Row as _};

use crate::store::{LOCK_WAIT, error_number, text::sql};

/// The row of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRow {
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
    let settings = crate::store::session::SETTINGS;
    sql!("{settings}, SESSION innodb_lock_wait_timeout = 1", settings).run(conn).await.map(drop)
}

/// Reads a lease, without locks. Primary key, one row.
pub async fn look(conn: &mut MySqlConnection, name: &str) -> Result<Option<LeaseRow>, sqlx::Error> {
    let sql = "SELECT owner, fence, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), lease_until) \
               FROM outbox_leases WHERE name = ?";
    let row = sqlx::query(sql).bind(name).fetch_optional(conn).await?;
    row.map(|row| Ok(LeaseRow { owner: row.try_get(0)?, fence: row.try_get(1)?, left: row.try_get(2)? })).transpose()
}

/// Fences of an epoch begin at the epoch times this number, so that they compare epoch first. No lease has this number
/// of tenures within a second, the distance of two epochs.
pub(in crate::store) const FENCES: u64 = 1_000_000;

/// Takes a lease that no owner ever held, and returns its fence. That is the first of the epoch, because a missing
/// lease may have been held after the snapshot that was restored. `None` if another owner was faster. Primary key, one
/// row; reads the last epoch.
pub async fn create(
    conn: &mut MySqlConnection,
    name: &str,
    owner: &str,
    length: Duration,
) -> Result<Option<u64>, sqlx::Error> {
    // Not in one statement: MariaDB refuses an insert (1020) beside a row that is younger than what the statement has
    // read.
    let sql = "SELECT CAST(COALESCE(MAX(epoch), 0) AS UNSIGNED) FROM outbox_epochs";
    let epoch: u64 = sqlx::query_scalar(sql).fetch_one(&mut *conn).await?;
    let fence = epoch.saturating_mul(FENCES) + 1;
    let micros = crate::store::enqueue::micros(length);
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
    let micros = crate::store::enqueue::micros(length);
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
    let micros = crate::store::enqueue::micros(length);
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
