//! Connections that come back to a pool.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use sqlx::{Connection, MySql, MySqlConnection, pool::PoolOptions};

use crate::store::session;

/// How long a connection that comes back may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Options with which a cancelled call harms no later borrower of its connection.
///
/// A service drops its handlers half-way when clients disconnect or a deadline passes, and sqlx's calls do not expect
/// that. A cancelled `begin` can leave a transaction open, in which the next borrower's writes are lost or committed by
/// another task. A cancelled read leaves a reply that the next borrower takes for its own. Or it leaves a connection
/// that waits for ever and keeps its place in the pool.
///
/// So a returned connection is rolled back and must answer a query within five seconds; otherwise it is closed. This
/// costs two round trips for each return, and replaces an `after_release` that was set before; [`check_returned`] is
/// the check for your own. It cannot repair one
/// case: sqlx closes without a time limit. So a large write that was cancelled while the server hangs keeps its place
/// until the server or the network ends the connection.
#[must_use]
pub fn cancel_safe(options: PoolOptions<MySql>) -> PoolOptions<MySql> {
    options.after_release(|connection, _| Box::pin(check_returned(connection)))
}

/// The check of [`cancel_safe`], for a pool with hooks of its own. Call it first in `after_release`, and return its
/// error: the pool then closes the connection.
///
/// ```no_run
/// # use outbox_core::{check_returned, sqlx::{self, mysql::MySqlPoolOptions}};
/// MySqlPoolOptions::new().after_release(|connection, _| {
///     Box::pin(async move {
///         check_returned(connection).await?;
///         sqlx::raw_sql("SET SESSION time_zone = '+00:00'").execute(connection).await?;
///         Ok(true)
///     })
/// });
/// ```
///
/// Rolls back, and asks the server for a number. Returns true; an error if the reply does not come within five seconds
/// or is not that number. Two round trips.
pub async fn check_returned(connection: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
    // A new number each time: the reply to an earlier query does not count.
    static QUESTION: AtomicU64 = AtomicU64::new(1);
    let question = QUESTION.fetch_add(1, Ordering::Relaxed);
    let answer = tokio::time::timeout(PATIENCE, async {
        // Reads the replies that a cancelled call left unread: sqlx panics if it finds them in place of a result set.
        Connection::ping(&mut *connection).await?;
        session::rollback_and_ask(connection, question).await
    })
    .await;
    if answer.map_err(std::io::Error::from)?? == Some(question) {
        return Ok(true);
    }
    Err(sqlx::Error::Protocol("the connection is out of step: a call on it was cancelled".into()))
}
