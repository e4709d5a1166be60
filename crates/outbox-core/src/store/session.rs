//! What the relay's own connections are set to.

use sqlx::{MySqlConnection, Row as _};

use super::text::Text;

/// Sets the session of a relay: `READ COMMITTED`, because `REPEATABLE READ` would lock gaps that services insert into;
/// UTC; and a lock wait that ends before the default settle deadline of five seconds does.
pub async fn prepare(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(SETTINGS).execute(conn).await.map(drop)
}

/// What a relay's session is set to; further variables may follow.
pub(super) const SETTINGS: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
    SET SESSION time_zone = '+00:00', SESSION innodb_lock_wait_timeout = 4, SESSION autocommit = 1";

/// Ends whatever a failed text left open.
pub async fn rollback(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("ROLLBACK").execute(conn).await.map(drop)
}

/// Ends whatever is open and reads a number back. None: the replies are not those of these statements. One round trip.
pub async fn rollback_and_ask(conn: &mut MySqlConnection, number: u64) -> Result<Option<u64>, sqlx::Error> {
    let replies = Text::default().sql("ROLLBACK; SELECT CAST(").int(number).sql(" AS UNSIGNED)").run(conn).await?;
    replies.iter().flat_map(|reply| &reply.rows).next().map(|row| row.try_get(0)).transpose()
}
