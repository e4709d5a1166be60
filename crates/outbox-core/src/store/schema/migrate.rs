//! The statements of a migration besides its own.

use sqlx::{AssertSqlSafe, Executor as _, MySqlConnection, SqlSafeStr as _, SqlStr};

use crate::store::{
    LOCK_WAIT, NO_SUCH_COLUMN, NO_SUCH_TABLE, error_number,
    refusal::{Refusal, refusal},
    schema::catalogue::ObjectKind,
};

/// The record of migrations: the columns are those of sqlx, which may write it, too.
pub(crate) const RECORD: &str = "CREATE TABLE IF NOT EXISTS outbox_migrations (
  version        BIGINT    NOT NULL,
  description    TEXT      CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  installed_on   TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
  success        BOOLEAN   NOT NULL,
  checksum       BLOB      NOT NULL,
  execution_time BIGINT    NOT NULL,
  PRIMARY KEY (version)
) ENGINE = InnoDB";

/// The names of its columns.
pub(crate) const RECORD_COLUMNS: [&str; 6] =
    ["version", "description", "installed_on", "success", "checksum", "execution_time"];

const NOTE: &str = "INSERT INTO outbox_migrations (version, description, success, checksum, execution_time) \
                    VALUES (?, ?, TRUE, ?, -1) ON DUPLICATE KEY UPDATE success = TRUE, description = ?, checksum = ?";

/// The note of an applied migration in a script.
pub(crate) fn note_in_script(version: i64, description: &str, checksum: &[u8]) -> String {
    let checksum = checksum.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    format!(
        "INSERT INTO outbox_migrations (version, description, success, checksum, execution_time)\n  \
         VALUES ({version}, '{description}', TRUE, 0x{checksum}, -1);\n"
    )
}

/// A migration that the record knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Its number.
    pub version: i64,
    /// Its name.
    pub description: String,
    /// Whether it was done: sqlx notes a migration before it applies it.
    pub success: bool,
    /// The checksum of its text.
    pub checksum: Vec<u8>,
}

/// The record of migrations in the order of their numbers; `None` if there is no such table. A few rows, no lock.
pub async fn applied(conn: &mut MySqlConnection) -> Result<Option<Vec<Applied>>, sqlx::Error> {
    // A limit of its own: `sql_select_limit` would cut the list.
    let sql = "SELECT version, CAST(description AS CHAR) AS description, success, checksum FROM outbox_migrations \
               ORDER BY version LIMIT 18446744073709551615";
    let row = |(version, description, success, checksum)| Applied { version, description, success, checksum };
    match sqlx::query_as(sql).fetch_all(conn).await {
        Ok(rows) => Ok(Some(rows.into_iter().map(row).collect())),
        Err(error) if matches!(error_number(&error), Some(NO_SUCH_TABLE | NO_SUCH_COLUMN)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Notes that a migration is applied. One row by its primary key.
pub(crate) async fn note(conn: &mut MySqlConnection, version: i64, name: &str, sum: &[u8]) -> Result<(), sqlx::Error> {
    sqlx::query(NOTE).bind(version).bind(name).bind(sum).bind(name).bind(sum).execute(conn).await.map(drop)
}

/// The variables that [`set_session`] sets, and their values. No SQL mode may change the meaning of a statement. The
/// waits are short: a statement that waits for a table makes the services' statements wait behind it. With
/// `alter_algorithm = COPY` MariaDB would copy a table in spite of `ALGORITHM = INSTANT`.
const VARIABLES: [(&str, &str); 8] = [
    ("sql_mode", "'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'"),
    ("lock_wait_timeout", "2"),
    ("innodb_lock_wait_timeout", "2"),
    ("completion_type", "0"),
    ("/*!80000 transaction_read_only */ /*M! tx_read_only */", "0"),
    ("/*!80000 max_execution_time */ /*M! max_statement_time */", "0"),
    ("/*!80000 old_alter_table */ /*M! alter_algorithm */", "0"),
    ("autocommit", "1"),
];

/// Sets the session for statements that change tables. [`restore`] undoes it.
pub(crate) async fn set_session(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let saved = assignments(|place, name, _| format!("@outbox_{place} = @@SESSION.{name}"));
    let set = assignments(|_, name, value| format!("SESSION {name} = {value}"));
    run(conn, AssertSqlSafe(format!("SET {saved}; SET {set}")).into_sql_str()).await
}

/// Restores the session.
pub(crate) async fn restore(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let restored = assignments(|place, name, _| format!("SESSION {name} = @outbox_{place}"));
    run(conn, AssertSqlSafe(format!("SET {restored}")).into_sql_str()).await
}

fn assignments(one: impl Fn(usize, &str, &str) -> String) -> String {
    let all = (0..).zip(VARIABLES).map(|(place, (name, value))| one(place, name, value));
    all.collect::<Vec<_>>().join(", ")
}

/// The smallest page of InnoDB, in bytes, whose keys are long enough: of 3072 bytes, against 1536 and 768 in smaller
/// ones.
pub const SMALLEST_PAGE: u64 = 16_384;

/// The size of a page of InnoDB, in bytes.
pub(crate) async fn page_size(conn: &mut MySqlConnection) -> Result<u64, sqlx::Error> {
    sqlx::query_scalar("SELECT CAST(@@GLOBAL.innodb_page_size AS UNSIGNED)").fetch_one(conn).await
}

/// Runs the statement of a migration.
pub(crate) async fn run(conn: &mut MySqlConnection, sql: SqlStr) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(sql).execute(conn).await.map(drop)
}

/// The server's error if the account lacks a privilege for a statement that reads or writes rows. The statement is only
/// prepared.
pub(crate) async fn denied_rows(conn: &mut MySqlConnection, sql: String) -> Result<Option<String>, sqlx::Error> {
    denial(conn.prepare(AssertSqlSafe(sql).into_sql_str()).await.map(drop))
}

/// The same for the record.
pub(crate) async fn denied_note(conn: &mut MySqlConnection) -> Result<Option<String>, sqlx::Error> {
    denial(conn.prepare(SqlStr::from_static(NOTE)).await.map(drop))
}

/// The same for the creation of a table or view. The statement always fails, because two of its columns have one name;
/// the server checks privileges first.
pub(crate) async fn denied_creation(
    conn: &mut MySqlConnection,
    kind: ObjectKind,
    name: &str,
) -> Result<Option<String>, sqlx::Error> {
    let sql = match kind {
        ObjectKind::Table => format!("CREATE TABLE {name} (a INT, a INT)"),
        ObjectKind::View => format!("CREATE OR REPLACE VIEW {name} AS SELECT 1 AS a, 1 AS a"),
    };
    denial(run(conn, AssertSqlSafe(sql).into_sql_str()).await)
}

/// The same for a change of a table. The statement always fails: there is no such column.
pub(crate) async fn denied_alteration(conn: &mut MySqlConnection, table: &str) -> Result<Option<String>, sqlx::Error> {
    let sql = format!("ALTER TABLE {table} DROP COLUMN outbox_no_such_column");
    denial(run(conn, AssertSqlSafe(sql).into_sql_str()).await)
}

/// The server's error if it denies a command. Of a command that it did not look at, nothing is known.
fn denial(outcome: Result<(), sqlx::Error>) -> Result<Option<String>, sqlx::Error> {
    match outcome {
        Err(error) if is_denial(&error) => Ok(error.as_database_error().map(|error| error.message().to_owned())),
        Err(error) if matches!(refusal(&error), None | Some(Refusal::Unavailable | Refusal::Doubtful)) => Err(error),
        Ok(()) | Err(_) => Ok(None),
    }
}

/// Whether the account lacks a privilege.
pub(crate) fn is_denial(error: &sqlx::Error) -> bool {
    error_number(error).is_some_and(|number| [1044, 1142, 1143, 1227, 1370].contains(&number))
}

/// Whether a statement waited in vain for a lock.
pub(crate) fn is_wait(error: &sqlx::Error) -> bool {
    error_number(error) == Some(LOCK_WAIT)
}

/// Whether the server cannot change this table at once: 1845 and 1846, or 4092 after too many instant changes.
pub(crate) fn is_not_instant(error: &sqlx::Error) -> bool {
    error_number(error).is_some_and(|number| [1845, 1846, 4092].contains(&number))
}
