//! Which version the tables have.

use sqlx::{MySqlConnection, Row as _};

use super::{NO_SUCH_TABLE, error_number};

/// The tables, but for sqlx's own record of migrations. A service may have others that begin with `outbox_`.
const TABLES: &str = "outbox_messages,outbox_pending,outbox_delayed,outbox_claims,outbox_head,outbox_sent,outbox_dead,outbox_leases,\
                      outbox_key_sequence,inbox_processed,inbox_dead,inbox_sequence";

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

/// A table of the outbox with another engine than InnoDB, if there is one. Reads the dictionary.
pub async fn foreign_engine(conn: &mut MySqlConnection) -> Result<Option<(String, String)>, sqlx::Error> {
    let sql = "SELECT CAST(table_name AS CHAR), CAST(engine AS CHAR) FROM information_schema.tables \
               WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND engine <> 'InnoDB' \
               AND FIND_IN_SET(table_name, ?) ORDER BY table_name LIMIT 1";
    sqlx::query_as(sql).bind(TABLES).fetch_optional(conn).await
}

/// A text column of the outbox whose collation is not binary, if there is one: table, column, collation. Reads the dictionary.
pub async fn foreign_collation(conn: &mut MySqlConnection) -> Result<Option<(String, String, String)>, sqlx::Error> {
    let sql = "SELECT CAST(c.table_name AS CHAR), CAST(c.column_name AS CHAR), CAST(c.collation_name AS CHAR) \
               FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name) \
               WHERE c.table_schema = DATABASE() AND t.table_type = 'BASE TABLE' AND RIGHT(c.collation_name, 4) <> '_bin' \
               AND FIND_IN_SET(c.table_name, ?) ORDER BY 1, 2 LIMIT 1";
    sqlx::query_as(sql).bind(TABLES).fetch_optional(conn).await
}

/// Waits until no other session migrates this database. False: one still does, so many seconds later. A lock of the session, not
/// of a transaction.
///
/// sqlx's own `GET_LOCK(…, -1)` waits for ever on MySQL, and not at all on MariaDB.
pub async fn lock(conn: &mut MySqlConnection, seconds: u16) -> Result<bool, sqlx::Error> {
    let sql = "SELECT CAST(GET_LOCK(CONCAT('outbox_migrate_', LEFT(SHA2(DATABASE(), 256), 32)), ?) AS SIGNED)";
    let locked: Option<i64> = sqlx::query_scalar(sql).bind(seconds).fetch_one(conn).await?;
    Ok(locked == Some(1))
}

/// Lets the next one migrate.
pub async fn unlock(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("DO RELEASE_LOCK(CONCAT('outbox_migrate_', LEFT(SHA2(DATABASE(), 256), 32)))")
        .execute(conn)
        .await
        .map(drop)
}
