//! Which version the tables have.

use sqlx::{MySqlConnection, Row as _};

use super::{NO_SUCH_TABLE, error_number};

/// The newest applied migration and, if there is one, a migration that stopped half-way; none: no tables.
/// A few rows of the migration record, no lock.
pub async fn version(conn: &mut MySqlConnection) -> Result<Option<(i64, Option<i64>)>, sqlx::Error> {
    let sql = "SELECT MAX(version), MIN(CASE WHEN success THEN NULL ELSE version END) FROM outbox_migrations";
    match sqlx::query(sql).fetch_one(conn).await {
        Ok(row) => Ok(row.try_get::<Option<i64>, _>(0)?.zip(Some(row.try_get(1)?))),
        Err(error) if error_number(&error) == Some(NO_SUCH_TABLE) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits until no other session migrates this database, at most ten minutes. A lock of the session, not of a transaction.
///
/// sqlx's own `GET_LOCK(…, -1)` waits for ever on MySQL, and not at all on MariaDB.
pub async fn lock(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("DO GET_LOCK(CONCAT('outbox_migrate_', LEFT(SHA2(DATABASE(), 256), 32)), 600)")
        .execute(conn)
        .await
        .map(drop)
}

/// Lets the next one migrate.
pub async fn unlock(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("DO RELEASE_LOCK(CONCAT('outbox_migrate_', LEFT(SHA2(DATABASE(), 256), 32)))")
        .execute(conn)
        .await
        .map(drop)
}
