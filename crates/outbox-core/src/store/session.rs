//! The settings of the relay's own connections.

use sqlx::{MySqlConnection, Row as _};

use crate::store::text::{Name, Text, sql};

/// Sets the session of a relay: `READ COMMITTED`, because `REPEATABLE READ` would lock gaps that services insert into;
/// and UTC. A connection may be idle for the servers' own default time. The SQL modes of the server are noted, for the
/// handlers of workers. One round trip.
pub async fn prepare(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sql!("SET @outbox_sql_mode = @@SESSION.sql_mode; {settings}", settings = SETTINGS).run(conn).await.map(drop)
}

/// The seconds for which a session may be idle, as in [`SETTINGS`].
pub(in crate::store) const IDLE: u64 = 28_800;

/// Every variable that changes an answer, an error, a wait or a commit, whatever the server, its `init_connect` or a
/// handler has set. The test `sessions::every_variable_of_a_session_is_decided` lists the others, with the reason.
///
/// Waits for locks end before the default settle deadline of five seconds. MySQL notices a lost client only after the
/// wait for a metadata lock: with its default of a year, each new connection of a relay would keep a thread. With
/// `sql_buffer_result` sound messages seemed missing on MariaDB 10.11. No variable needs a privilege. Those of one
/// server are in comments that the other one skips.
macro_rules! variables {
    () => {
        "NAMES utf8mb4 COLLATE utf8mb4_unicode_ci, timestamp = DEFAULT, SESSION time_zone = '+00:00',
        SESSION innodb_lock_wait_timeout = 4, SESSION lock_wait_timeout = 4, SESSION completion_type = 0,
        SESSION net_read_timeout = 30, SESSION net_write_timeout = 60, SESSION sql_select_limit = 18446744073709551615,
        SESSION sql_big_selects = 1, SESSION sql_safe_updates = 0, SESSION sql_auto_is_null = 0, SESSION sql_buffer_result = 0,
        SESSION foreign_key_checks = 1, SESSION unique_checks = 1, SESSION group_concat_max_len = 1048576,
        SESSION max_sort_length = 1024, SESSION div_precision_increment = 4
        /*!80013 , SESSION max_execution_time = 0, SESSION use_secondary_engine = ON */
        /*M! , SESSION max_statement_time = 0, SESSION idle_transaction_timeout = 0,
        SESSION idle_readonly_transaction_timeout = 0, SESSION idle_write_transaction_timeout = 0,
        SESSION tmp_disk_table_size = 18446744073709551615, SESSION query_cache_type = 0 */"
    };
}

/// The SQL modes of all statements of this project: no mode of the server may change their meaning.
macro_rules! modes {
    () => {
        "SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'"
    };
}

/// The variables that a handler cannot change for the statements of its transaction. No transaction may be open: it
/// would be committed. Further variables may follow.
macro_rules! outside {
    () => {
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; \
        SET SESSION autocommit = 1, SESSION wait_timeout = 28800"
    };
}

/// The rest of the settings, after a transaction that began with [`reset`].
pub(in crate::store) const OUTSIDE: &str = outside!();

/// The settings of a relay's session; further variables may follow. No transaction may be open: it would be committed.
pub(in crate::store) const SETTINGS: &str = concat!(outside!(), ", ", modes!(), ", ", variables!());

/// The statements that reset the settings of a handler within a transaction, and its `USE`. The session was set by
/// [`prepare`]. The modes become those of the server if another handler may follow.
pub(in crate::store) fn reset(database: Option<&str>, modes: Modes) -> Text {
    let text = database.map_or_else(Text::default, |name| sql!("USE {name}; ", name = Name(name)));
    sql!(
        "{text}SET {modes}, {variables}; ",
        text,
        modes = match modes {
            Modes::Own => modes!(),
            Modes::Server => SERVER_MODES,
        },
        variables = variables!(),
    )
}

/// The SQL modes of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Modes {
    /// Those of this project's statements.
    Own,
    /// Those with which the server began the session: for handlers.
    Server,
}

/// The assignment of the modes with which the server began the session.
pub(in crate::store) const SERVER_MODES: &str = "SESSION sql_mode = @outbox_sql_mode";

/// The servers that answer a read and, in a transaction, a locking read: their host, port and `server_id`. They differ
/// behind a proxy that sends reads to replicas. Reads no row, and locks none. Four round trips.
pub async fn servers(conn: &mut MySqlConnection) -> Result<[String; 2], sqlx::Error> {
    const READ: &str =
        "SELECT CONCAT_WS('/', @@hostname, @@port, @@server_id), COUNT(*) FROM outbox_leases WHERE name = ''";
    const LOCK: &str = "SELECT CONCAT_WS('/', @@hostname, @@port, @@server_id), COUNT(*) FROM outbox_leases \
                        WHERE name = '' FOR UPDATE";
    // Separate texts: a proxy looks at the beginning of a text.
    let read = sqlx::raw_sql(READ).fetch_one(&mut *conn).await?.try_get(0)?;
    sqlx::raw_sql("START TRANSACTION").execute(&mut *conn).await?;
    let lock = sqlx::raw_sql(LOCK).fetch_one(&mut *conn).await;
    rollback(conn).await?;
    Ok([read, lock?.try_get(0)?])
}

/// Ends the transaction that a failed text left open.
pub async fn rollback(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("ROLLBACK").execute(conn).await.map(drop)
}

/// Ends an open transaction and reads a number back. `None` if the replies are not those of these statements. One round
/// trip.
pub async fn rollback_and_ask(conn: &mut MySqlConnection, number: u64) -> Result<Option<u64>, sqlx::Error> {
    let replies = sql!("ROLLBACK; SELECT CAST({number} AS UNSIGNED)", number).run(conn).await?;
    replies.iter().flat_map(|reply| &reply.rows).next().map(|row| row.try_get(0)).transpose()
}
