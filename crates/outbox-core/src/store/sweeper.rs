//! A named lease: one relay at a time does the housekeeping.

use std::time::Duration;

use sqlx::MySqlConnection;

/// Takes or prolongs the lease; false: another holds it. Primary key, one row.
pub async fn acquire(
    conn: &mut MySqlConnection,
    name: &str,
    owner: &str,
    lease: Duration,
) -> Result<bool, sqlx::Error> {
    let create = "INSERT IGNORE INTO outbox_leases (name, owner, lease_until) VALUES (?, ?, '1970-01-01')";
    sqlx::query(create).bind(name).bind(owner).execute(&mut *conn).await?;
    let take = "UPDATE outbox_leases SET owner = ?, lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND \
                WHERE name = ? AND (owner = ? OR lease_until < UTC_TIMESTAMP(6))";
    let micros = super::enqueue::micros(lease);
    let taken = sqlx::query(take).bind(owner).bind(micros).bind(name).bind(owner).execute(conn).await?;
    Ok(taken.rows_affected() == 1)
}
