//! Locks of whole tables by other sessions: LOCK TABLES, FLUSH TABLES WITH READ LOCK, ALTER TABLE, a dump, a backup.

use std::fmt;

use sqlx::{MySqlConnection, Row as _};

use crate::store::{
    LOCK_WAIT, error_number,
    refusal::{Refusal, refusal},
    schema::TABLES,
    text::{Name, Text, sql},
};

/// A table that another session has locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableLock {
    /// Its name.
    pub table: String,
    /// The session, if this account may see it.
    pub holder: Option<LockHolder>,
}

/// A session that has locked a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    /// The number for KILL.
    pub session: u64,
    /// Its account, as `user@host`.
    pub account: String,
    /// How long its last statement runs, or has ended ago.
    pub seconds: i64,
}

impl fmt::Display for TableLock {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "another session has locked {}: ", self.table)?;
        match &self.holder {
            Some(LockHolder { session, account, seconds }) => {
                write!(
                    to,
                    "session {session} of {account}, in its state for {seconds} s; let it end, or KILL {session}"
                )
            }
            None => to.write_str(
                "let LOCK TABLES, ALTER TABLE, the dump or the backup end; an administrator sees the session in \
                 performance_schema.metadata_locks",
            ),
        }
    }
}

/// Whether the server has given up the wait for a lock, of a row or of a table.
#[must_use]
pub fn is_lock_wait(error: &sqlx::Error) -> bool {
    error_number(error) == Some(LOCK_WAIT)
}

/// Finds a table of the outbox that another session has locked, against writes where the account may write. Ends an
/// open transaction. The session must be as [`session::prepare`](crate::store::session::prepare) left it.
///
/// Touches no row: two statements for a table at most, and one second for the one that is locked.
pub async fn find(conn: &mut MySqlConnection) -> Result<Option<TableLock>, sqlx::Error> {
    sql!("ROLLBACK; SET SESSION lock_wait_timeout = 1").run(conn).await?;
    let mut locked = None;
    for table in TABLES.split(',').map(str::trim) {
        if is_locked(conn, table).await? {
            locked = Some(TableLock { table: table.to_owned(), holder: holder(conn, table).await.unwrap_or_default() });
            break;
        }
    }
    sql!("SET SESSION lock_wait_timeout = 4").run(conn).await?;
    Ok(locked)
}

async fn is_locked(conn: &mut MySqlConnection, table: &str) -> Result<bool, sqlx::Error> {
    // No rows, no lock of a row. It waits for the locks of a table that a write waits for.
    match waits(conn, sql!("DELETE FROM {table} WHERE FALSE", table = Name(table))).await {
        // Without the right to delete, or on a server that takes no writes: the locks that a read waits for.
        Err(error) if error.as_database_error().is_some() => {}
        outcome => return outcome,
    }
    match waits(conn, sql!("SELECT 1 FROM {table} LIMIT 0", table = Name(table))).await {
        // The account may not see it: it cannot tell.
        Err(error) if refusal(&error) == Some(Refusal::Setup) => Ok(false),
        outcome => outcome,
    }
}

/// Whether a statement waits for a table.
async fn waits(conn: &mut MySqlConnection, text: Text) -> Result<bool, sqlx::Error> {
    match text.run(conn).await {
        Ok(_) => Ok(false),
        Err(error) if is_lock_wait(&error) => Ok(true),
        Err(error) => Err(error),
    }
}

/// The session whose lock bars the table: one that has it, before one that waits for it in front of all others, as an
/// ALTER TABLE does. Reads the locks of the server, no table. Most accounts may not.
async fn holder(conn: &mut MySqlConnection, table: &str) -> Result<Option<LockHolder>, sqlx::Error> {
    const SQL: &str = "SELECT CAST(t.processlist_id AS UNSIGNED), CAST(CONCAT(t.processlist_user, '@', \
                       t.processlist_host) AS CHAR), \
            CAST(COALESCE(t.processlist_time, 0) AS SIGNED) \
        FROM performance_schema.metadata_locks l JOIN performance_schema.threads t ON t.thread_id = l.owner_thread_id \
        WHERE t.processlist_id <> CONNECTION_ID() AND (l.object_type IN ('GLOBAL', 'COMMIT', 'BACKUP') \
            AND (l.lock_type = 'SHARED' OR l.lock_type LIKE 'BACKUP\\_FTWRL%') OR l.object_type = 'TABLE' \
            AND l.object_schema = DATABASE() AND l.object_name = ? \
            AND l.lock_type IN ('EXCLUSIVE', 'SHARED_NO_READ_WRITE', 'SHARED_NO_WRITE', 'SHARED_READ_ONLY')) \
        ORDER BY l.lock_status = 'GRANTED' DESC LIMIT 1";
    let row = sqlx::query(SQL).bind(table).fetch_optional(conn).await?;
    let read = |row| -> Result<_, sqlx::Error> {
        let row: sqlx::mysql::MySqlRow = row;
        Ok(LockHolder { session: row.try_get(0)?, account: row.try_get(1)?, seconds: row.try_get(2)? })
    };
    row.map(read).transpose()
}
