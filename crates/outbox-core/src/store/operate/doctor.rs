//! The state of the server and of its accounts, for `relay doctor`. Nothing here changes or locks a row.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection, Row as _, SqlSafeStr as _, SqlStr};

use crate::store::{
    NO_PRIVILEGE, NO_TEXT, VIEW_UNUSABLE, error_number,
    refusal::{Refusal, refusal},
    schema::{TABLES, migrate::is_denial},
};

/// The settings of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Server {
    /// The account that the server chose for this login: `relay@10.0.0.%`.
    pub account: String,
    /// Microseconds since 1970, by the server's clock.
    pub now: i64,
    /// Some of its global variables, by their names in lowercase. Servers lack those of other versions.
    pub variables: BTreeMap<String, String>,
    /// Open connections of all accounts.
    pub connections: u64,
}

/// Reads the settings of the server.
pub async fn server(conn: &mut MySqlConnection) -> Result<Server, sqlx::Error> {
    let sql = "SELECT CAST(CURRENT_USER() AS CHAR), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
    let (account, now) = sqlx::query_as(sql).fetch_one(&mut *conn).await?;
    let sql = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'innodb_flush_log_at_trx_commit', 'log_bin', \
               'sync_binlog', \
               'binlog_format', 'read_only', 'innodb_read_only', 'group_replication_group_name', \
               'transaction_read_only', 'tx_read_only', 'max_connections', \
               'max_allowed_packet', 'innodb_page_size')";
    let variables: Vec<(String, String)> = sqlx::query_as(sql).fetch_all(&mut *conn).await?;
    let variables = variables.into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect();
    let sql = "SHOW GLOBAL STATUS LIKE 'Threads_connected'";
    let (_, connections): (String, String) = sqlx::query_as(sql).fetch_one(conn).await?;
    Ok(Server { account, now, variables, connections: connections.parse().unwrap_or_default() })
}

/// The privileges of this session's account and of its active roles, one GRANT statement a line. A line may hold the
/// hash of a password.
pub async fn grants(conn: &mut MySqlConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar("SHOW GRANTS").fetch_all(conn).await
}

/// Makes this the only active role of the session: one that the server has named and quoted, `NONE`, or on MySQL `ALL`.
/// Forgets what was prepared, since the privileges for it were checked before.
pub async fn take_role(conn: &mut MySqlConnection, role: &str) -> Result<(), sqlx::Error> {
    conn.clear_cached_statements().await?;
    sqlx::raw_sql(AssertSqlSafe(format!("SET ROLE {role}"))).execute(conn).await.map(drop)
}

/// The views that cannot be read or, as that of the audit, written, because the account that made them is missing or
/// lacks privileges. A restore under another name, or on another server, brings neither. Reads no row.
pub async fn unusable_views(conn: &mut MySqlConnection) -> Result<Vec<&'static str>, sqlx::Error> {
    let mut unusable = Vec::new();
    for (view, sql) in [
        ("outbox_claimed_messages", "SELECT 1 FROM outbox_claimed_messages LIMIT 0"),
        ("outbox_sent_messages", "SELECT 1 FROM outbox_sent_messages LIMIT 0"),
        ("outbox_listed_messages", "SELECT 1 FROM outbox_listed_messages LIMIT 0"),
        ("outbox_audit_entries", "INSERT INTO outbox_audit_entries (actor) VALUES ('')"),
    ] {
        match conn.prepare(SqlStr::from_static(sql)).await {
            Err(error) if error_number(&error).is_some_and(|number| VIEW_UNUSABLE.contains(&number)) => {
                unusable.push(view);
            }
            // A missing view or privilege is a finding of its own.
            Err(error) if refusal(&error) != Some(Refusal::Setup) => return Err(error),
            _ => {}
        }
    }
    Ok(unusable)
}

/// A privilege on a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Privilege<'a> {
    /// `SELECT`, `INSERT`, `UPDATE` or `DELETE`.
    pub name: &'a str,
    /// The columns, separated by commas; empty: the whole table.
    pub columns: &'a str,
    /// The table.
    pub table: &'a str,
}

/// Whether the account lacks a privilege on a table. A statement is prepared, and not executed. All names must be those
/// of a constant text.
pub async fn lacks(conn: &mut MySqlConnection, privilege: &Privilege<'_>) -> Result<bool, sqlx::Error> {
    let &Privilege { name, columns, table } = privilege;
    let sql = match (name, columns) {
        ("SELECT", "") => format!("SELECT * FROM {table}"),
        ("SELECT", columns) => format!("SELECT {columns} FROM {table}"),
        ("INSERT", _) => format!("INSERT INTO {table} VALUES ()"),
        ("UPDATE", "") => {
            let sql = "SELECT CAST(column_name AS CHAR) FROM information_schema.columns \
                       WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position LIMIT 1";
            // The server hides a table on which the account has no privilege.
            let column: Option<String> = sqlx::query_scalar(sql).bind(table).fetch_optional(&mut *conn).await?;
            let Some(column) = column else { return Ok(true) };
            format!("UPDATE {table} SET {column} = DEFAULT({column})")
        }
        ("UPDATE", columns) => {
            let set = columns.split(',').map(|column| format!("{column} = DEFAULT({column})"));
            format!("UPDATE {table} SET {}", set.collect::<Vec<_>>().join(", "))
        }
        _ => format!("DELETE FROM {table}"),
    };
    match conn.prepare(AssertSqlSafe(sql).into_sql_str()).await {
        Err(error) if is_denial(&error) => Ok(true),
        // After any other error it is not known: the server has not judged the statement.
        Err(error) if !matches!(refusal(&error), Some(Refusal::Setup | Refusal::Call)) => Err(error),
        Ok(_) | Err(_) => Ok(false),
    }
}

/// A transaction of another session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTransaction {
    /// The number of its connection; 0: it is prepared (XA) and has none.
    pub connection: u64,
    /// Its age in seconds.
    pub seconds: i64,
    /// Whether it has written or locked rows.
    pub writes: bool,
    /// The account.
    pub user: String,
    /// The client's address.
    pub host: String,
}

/// The open transactions of other sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transactions {
    /// There is none.
    None,
    /// The oldest one.
    Oldest(OpenTransaction),
    /// The account lacks the privilege PROCESS.
    Hidden,
    /// The server cannot show its list for the moment, see [`crate::store::claim::floor`].
    Unreadable,
}

/// Reads the list of open transactions.
pub async fn transactions(conn: &mut MySqlConnection) -> Result<Transactions, sqlx::Error> {
    // The start is in the local time of the server's process, see `floor`.
    let sql = "SELECT t.trx_mysql_thread_id, CAST(TIMESTAMPDIFF(SECOND, t.trx_started, \
               COALESCE(CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM'), UTC_TIMESTAMP())) AS SIGNED), \
               t.trx_rows_modified > 0 OR t.trx_rows_locked > 0, COALESCE(CAST(p.user AS CHAR), ''), \
               COALESCE(CAST(p.host AS CHAR), '') \
               FROM information_schema.innodb_trx t LEFT \
               JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
               WHERE t.trx_mysql_thread_id <> CONNECTION_ID() ORDER BY t.trx_started LIMIT 1";
    let row = match sqlx::query(sql).fetch_optional(conn).await {
        Ok(Some(row)) => row,
        Ok(None) => return Ok(Transactions::None),
        Err(error) => {
            return match error_number(&error) {
                Some(NO_PRIVILEGE) => Ok(Transactions::Hidden),
                Some(NO_TEXT) => Ok(Transactions::Unreadable),
                _ => Err(error),
            };
        }
    };
    Ok(Transactions::Oldest(OpenTransaction {
        connection: row.try_get(0)?,
        seconds: row.try_get(1)?,
        writes: row.try_get(2)?,
        user: row.try_get(3)?,
        host: row.try_get(4)?,
    }))
}

/// A job that no relay carries out: it has been due for a minute. Reads the open jobs.
pub async fn idle_job(conn: &mut MySqlConnection) -> Result<Option<u64>, sqlx::Error> {
    let sql = "SELECT job_id FROM outbox_jobs WHERE ended_at IS NULL \
               AND next_at < UTC_TIMESTAMP(6) - INTERVAL 60 SECOND \
               ORDER BY job_id LIMIT 1";
    sqlx::query_scalar(sql).fetch_optional(conn).await
}

/// The age of the oldest receipt in microseconds. One row by its primary key.
pub async fn oldest_receipt(conn: &mut MySqlConnection) -> Result<Option<i64>, sqlx::Error> {
    let sql =
        "SELECT TIMESTAMPDIFF(MICROSECOND, sent_at, UTC_TIMESTAMP(6)) FROM outbox_sent ORDER BY receipt_id LIMIT 1";
    sqlx::query_scalar(sql).fetch_optional(conn).await
}

/// The topics and types of the newest thousand messages. Reads them by their primary key.
pub async fn topics(conn: &mut MySqlConnection) -> Result<Vec<(String, Option<String>)>, sqlx::Error> {
    let sql = "SELECT DISTINCT topic, event_type FROM (SELECT topic, event_type FROM outbox_messages ORDER BY id DESC \
               LIMIT 1000) newest";
    sqlx::query_as(sql).fetch_all(conn).await
}

/// The size of a table, by the server's statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSize {
    /// Its name.
    pub table: String,
    /// About how many rows it has.
    pub rows: u64,
    /// Bytes of rows and indexes.
    pub bytes: u64,
}

/// The sizes of the outbox's tables that the account may see, the largest first. Reads the dictionary and the
/// statistics of the storage engine, and no row. MySQL would show what it knew a day ago.
pub async fn table_sizes(conn: &mut MySqlConnection) -> Result<Vec<TableSize>, sqlx::Error> {
    let sql = "SET @outbox = 0 /*!80000 , SESSION information_schema_stats_expiry = 0 */";
    sqlx::raw_sql(sql).execute(&mut *conn).await?;
    let sql = "SELECT CAST(table_name AS CHAR), CAST(COALESCE(table_rows, 0) AS UNSIGNED), \
               CAST(COALESCE(data_length + index_length, 0) AS UNSIGNED) FROM information_schema.tables \
               WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND FIND_IN_SET(table_name, ?) \
               ORDER BY 3 DESC, 1";
    let sizes: Vec<(String, u64, u64)> = sqlx::query_as(sql).bind(TABLES).fetch_all(conn).await?;
    Ok(sizes.into_iter().map(|(table, rows, bytes)| TableSize { table, rows, bytes }).collect())
}

#[cfg(test)]
mod tests {
    use testkit::{database::Database, on_both_databases, servers::Flavor};

    use super::*;

    on_both_databases!(a_privilege_is_not_taken_for_granted_while_the_table_is_locked);

    /// A change of the table waits for a reader, and the check behind it.
    async fn a_privilege_is_not_taken_for_granted_while_the_table_is_locked(flavor: Flavor) -> anyhow::Result<()> {
        let database = Database::create(flavor).await?;
        let mut reader = database.connect_as_admin().await?;
        let mut db = database.connect().await?;
        sqlx::raw_sql("BEGIN; SELECT * FROM outbox_dead").execute(&mut reader).await?;
        let mut changer = database.connect_as_admin().await?;
        let change = tokio::spawn(async move {
            sqlx::raw_sql("ALTER TABLE outbox_dead COMMENT = 'changed'").execute(&mut changer).await
        });
        let waits = "SELECT COUNT(*) FROM information_schema.processlist \
                     WHERE db = DATABASE() AND state LIKE 'Waiting for table metadata lock%'";
        // While another session binds what is not text, MySQL refuses the list.
        while sqlx::query_scalar::<_, i64>(waits).fetch_one(&mut reader).await.unwrap_or(0) == 0 {}
        sqlx::raw_sql("SET SESSION lock_wait_timeout = 1").execute(&mut db).await?;
        let privilege = Privilege { name: "SELECT", columns: "", table: "outbox_dead" };
        assert!(lacks(&mut db, &privilege).await.is_err());
        sqlx::raw_sql("ROLLBACK").execute(&mut reader).await?;
        change.await??;
        assert!(!lacks(&mut db, &privilege).await?);
        Ok(())
    }
}
