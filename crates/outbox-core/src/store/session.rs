//! The settings of the relay's own connections.

use sqlx::{MySqlConnection, Row as _};

use super::text::{Name, Text, sql};

/// Sets the session of a relay: `READ COMMITTED`, because `REPEATABLE READ` would lock gaps that services insert into;
/// and UTC. The lock wait ends before the default settle deadline of five seconds. A connection may be idle for the
/// servers' own default time. An UPDATE or DELETE that names no key is not refused. The SQL modes stay as they are, and
/// are noted.
pub async fn prepare(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let text = sql!("{settings}; SET @outbox_sql_mode = @@SESSION.sql_mode", settings = SETTINGS);
    text.run(conn).await.map(drop)
}

/// The seconds for which a session may be idle, as in [`SETTINGS`].
pub(super) const IDLE: u64 = 28_800;

/// The settings of a relay's session; further variables may follow. No transaction may be open: it would be committed.
pub(super) const SETTINGS: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET SESSION autocommit = 1, \
    SESSION wait_timeout = 28800, SESSION time_zone = '+00:00', SESSION innodb_lock_wait_timeout = 4, SESSION sql_safe_updates = 0";

/// The statements that reset the settings of a handler within a transaction, and its `USE`. The session was set by
/// [`prepare`].
pub(super) fn reset(database: Option<&str>) -> Text {
    let text = database.map_or_else(Text::default, |name| sql!("USE {name}; ", name = Name(name)));
    sql!(
        "{text}SET SESSION sql_mode = @outbox_sql_mode, SESSION time_zone = '+00:00',
            SESSION innodb_lock_wait_timeout = 4, SESSION sql_safe_updates = 0; ",
        text
    )
}

/// The servers that answer a read and, in a transaction, a locking read: their host, port and `server_id`. They differ
/// behind a proxy that sends reads to replicas. Reads no row, and locks none. Four round trips.
pub async fn servers(conn: &mut MySqlConnection) -> Result<[String; 2], sqlx::Error> {
    const READ: &str =
        "SELECT CONCAT_WS('/', @@hostname, @@port, @@server_id), COUNT(*) FROM outbox_leases WHERE name = ''";
    const LOCK: &str = "SELECT CONCAT_WS('/', @@hostname, @@port, @@server_id), COUNT(*) FROM outbox_leases WHERE name = '' FOR UPDATE";
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
