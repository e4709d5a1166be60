//! The programs that the tables serve, and the engines and collations of the tables.

pub(crate) mod catalogue;
pub mod counters;
pub mod migrate;
pub mod recover;

use sqlx::MySqlConnection;

use crate::store::{NO_SUCH_TABLE, error_number};

/// The tables, but for the record of migrations. A service may have others that begin with `outbox_`.
pub(in crate::store) const TABLES: &str = "outbox_messages,outbox_pending,outbox_delayed,outbox_claims,outbox_head,outbox_sent,outbox_dead,outbox_leases,\
                      outbox_key_sequence,outbox_schema,outbox_epochs,outbox_jobs,outbox_audit,outbox_controls,outbox_instances,outbox_replays,outbox_attempts,inbox_processed,inbox_dead,inbox_sequence,inbox_started,inbox_retries";

/// The smallest version of a reader and of a writer that the tables serve; `None` if it is not recorded. One row, no
/// lock.
pub async fn smallest(conn: &mut MySqlConnection) -> Result<Option<(u64, u64)>, sqlx::Error> {
    let sql = "SELECT smallest_reader, smallest_writer FROM outbox_schema WHERE id = 1";
    match sqlx::query_as(sql).fetch_optional(conn).await {
        Err(error) if error_number(&error) == Some(NO_SUCH_TABLE) => Ok(None),
        outcome => outcome,
    }
}

/// A table of the outbox with another engine than InnoDB, if there is one. Reads the dictionary.
pub async fn foreign_engine(conn: &mut MySqlConnection) -> Result<Option<(String, String)>, sqlx::Error> {
    let sql = "SELECT CAST(table_name AS CHAR), CAST(engine AS CHAR) FROM information_schema.tables \
               WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND engine <> 'InnoDB' \
               AND FIND_IN_SET(table_name, ?) ORDER BY table_name LIMIT 1";
    sqlx::query_as(sql).bind(TABLES).fetch_optional(conn).await
}

/// A text column of the outbox whose collation is not binary, if there is one: table, column, collation. Reads the
/// dictionary.
pub async fn foreign_collation(conn: &mut MySqlConnection) -> Result<Option<(String, String, String)>, sqlx::Error> {
    let sql = "SELECT CAST(c.table_name AS CHAR), CAST(c.column_name AS CHAR), CAST(c.collation_name AS CHAR) \
               FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name) \
               WHERE c.table_schema = DATABASE() AND t.table_type = 'BASE TABLE' \
               AND RIGHT(c.collation_name, 4) <> '_bin' \
               AND FIND_IN_SET(c.table_name, ?) ORDER BY 1, 2 LIMIT 1";
    sqlx::query_as(sql).bind(TABLES).fetch_optional(conn).await
}

/// Waits until no other session migrates this database. False: one still does after this number of seconds. A lock of
/// the session, not of a transaction.
///
/// sqlx's own `GET_LOCK(…, -1)` waits for ever on MySQL, and not at all on MariaDB.
pub async fn lock(conn: &mut MySqlConnection, seconds: u16) -> Result<bool, sqlx::Error> {
    let sql = "SELECT CAST(GET_LOCK(CONCAT('outbox_migrate_', LEFT(SHA2(DATABASE(), 256), 32)), ?) AS SIGNED)";
    let locked: Option<i64> = sqlx::query_scalar(sql).bind(seconds).fetch_one(conn).await?;
    Ok(locked == Some(1))
}

/// Lets the next session migrate.
pub async fn unlock(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("DO RELEASE_LOCK(CONCAT('outbox_migrate_', LEFT(SHA2(DATABASE(), 256), 32)))")
        .execute(conn)
        .await
        .map(drop)
}
