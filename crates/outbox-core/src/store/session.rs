//! What the relay's own connections are set to.

use sqlx::MySqlConnection;

/// Sets the session of a relay: `READ COMMITTED`, because `REPEATABLE READ` would lock gaps that services insert into;
/// UTC; and a lock wait that ends before the default settle deadline of five seconds does.
pub async fn prepare(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let text = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
                SET SESSION time_zone = '+00:00', SESSION innodb_lock_wait_timeout = 4, SESSION autocommit = 1";
    sqlx::raw_sql(text).execute(conn).await.map(drop)
}

/// Ends whatever a failed text left open.
pub async fn rollback(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("ROLLBACK").execute(conn).await.map(drop)
}
