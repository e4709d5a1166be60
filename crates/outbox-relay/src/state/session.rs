//! A long-lived connection of the relay that is never left in the middle of a call.

use std::{
    io::ErrorKind,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::{
        self,
        operate::locked::{self, TableLock},
        refusal::{Refusal, refusal},
    },
};
use parking_lot::Mutex;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    database,
    driver_errors::{Trouble, explain},
    state::{backoff::Backoff, context::Context},
};

/// A connection that is opened on its first use, and again after it was lost.
///
/// A call that does not end (deadline, cancelled future) drops its connection, because the protocol would be out of
/// step. The server then rolls back the open transaction.
pub struct Session {
    context: Arc<Context>,
    connection: Option<MySqlConnection>,
    /// Whether the last call failed.
    failed: bool,
    pauses: Backoff,
}

/// Longest pause between two tries to reach the database.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Longest deadline of a read, which is also the longest wait for a connection whose server has vanished.
const MAX_PATIENCE: Duration = Duration::from_secs(40);

impl Session {
    /// Creates a session that is not connected yet.
    pub fn new(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context), connection: None, failed: false, pauses: pauses() }
    }

    /// Runs one operation within the settle deadline. Connecting has the same time again, because it takes more round
    /// trips than most calls.
    ///
    /// After an error this session has nothing open on the server. Whether the operation took effect is unknown, unless
    /// the server itself refused it.
    pub async fn run<T>(
        &mut self,
        operation: &'static str,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        let deadline = self.context.config.relay.settle_deadline;
        self.run_within(deadline, operation, work).await
    }

    /// Does the same as [`Self::run`] for a read that goes past the deleted rows that a snapshot keeps. A stop does not
    /// wait for it.
    pub async fn run_patiently<T>(
        &mut self,
        patience: &mut Patience,
        operation: &'static str,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        let stop = self.context.stop.clone();
        let call = self.run_within(patience.now, operation, work);
        let stopped = || Err(sqlx::Error::Io(ErrorKind::Interrupted.into()));
        let outcome = stop.run_until_cancelled(call).await.unwrap_or_else(stopped);
        if matches!(&outcome, Err(sqlx::Error::Io(error)) if error.kind() == ErrorKind::TimedOut) {
            patience.is_out();
        }
        outcome
    }

    async fn run_within<T>(
        &mut self,
        deadline: Duration,
        operation: &'static str,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        let started = Instant::now();
        let outcome = self.attempt(deadline, work).await;
        let lock = if outcome.as_ref().is_err_and(locked::is_lock_wait) { self.table_lock().await } else { None };
        let duration = &self.context.metrics.db_call_duration_seconds;
        duration.with_label_values(&[operation]).observe(started.elapsed().as_secs_f64());
        self.report(operation, &outcome, lock);
        outcome
    }

    async fn attempt<T>(
        &mut self,
        deadline: Duration,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        // The connection is taken out while the call runs: a dropped future drops it, too.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Box::pin(self.in_time(connect(&self.context))).await?,
        };
        let outcome = within(deadline, work(&mut connection)).await;
        let refused = outcome.as_ref().is_err_and(|error| error.as_database_error().is_some());
        if outcome.is_ok() || refused && self.in_time(store::session::rollback(&mut connection)).await.is_ok() {
            self.connection = Some(connection);
        }
        outcome
    }

    async fn in_time<T>(&self, call: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
        within(self.context.config.relay.settle_deadline, call).await
    }

    /// Finds the table whose lock a call has waited for; `None` if it was the lock of a row.
    async fn table_lock(&mut self) -> Option<TableLock> {
        let mut connection = self.connection.take()?;
        let found = self.in_time(locked::find(&mut connection)).await.ok()?;
        self.connection = Some(connection);
        found
    }

    fn report<T>(&mut self, operation: &'static str, outcome: &Result<T, sqlx::Error>, lock: Option<TableLock>) {
        let Err(error) = outcome else {
            if self.failed {
                tracing::info!(operation, "the database answers again");
                self.pauses.reset();
            }
            self.failed = false;
            return self.context.health.dependency("database", Ok(()));
        };
        self.failed = true;
        let kind = match (&lock, error.as_database_error()) {
            (Some(_), _) => "locked",
            (None, Some(_)) => "refused",
            (None, None) => "lost",
        };
        self.context.metrics.db_errors_total.with_label_values(&[operation, kind]).inc();
        let text = lock.map_or_else(|| describe(error), |lock| lock.to_string());
        tracing::warn!(operation, kind, error = text, "a database call failed");
        match refusal(error) {
            _ if kind == "locked" => self.context.health.refused(text),
            None => self.context.health.dependency("database", Err(text)),
            Some(Refusal::Contention | Refusal::RolledBack) => {}
            Some(_) => self.context.health.refused(text),
        }
    }

    /// Returns the connection, if it is open, for work with a deadline of its own.
    pub(crate) fn connection(&mut self) -> Option<&mut MySqlConnection> {
        self.connection.as_mut()
    }

    /// Closes the connection, and with it whatever is open on it.
    pub(crate) fn hang_up(&mut self) {
        self.connection = None;
    }

    /// Waits before the next try: longer after each failure in a row, at most two seconds.
    pub async fn pause(&mut self) {
        tokio::time::sleep(self.pauses.next()).await;
    }
}

async fn within<T>(deadline: Duration, call: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
    let timed_out = |_| sqlx::Error::Io(ErrorKind::TimedOut.into());
    tokio::time::timeout(deadline, call).await.map_err(timed_out).flatten()
}

/// The deadline of a read whose duration depends on an open snapshot. A hundred million deleted rows take longer than
/// the usual deadline, and a read that timed out begins at the first row again.
#[derive(Debug)]
pub struct Patience {
    usual: Duration,
    now: Duration,
}

impl Patience {
    /// Starts with the deadline of any other call.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        let usual = context.config.relay.settle_deadline;
        Self { usual, now: usual }
    }

    /// Notes the longest duration of a round's reads.
    pub fn took(&mut self, longest: Duration) {
        self.now = self.bounded(longest * 2);
    }

    fn is_out(&mut self) {
        self.now = self.bounded(self.now * 2);
    }

    fn bounded(&self, time: Duration) -> Duration {
        time.max(self.usual).min(MAX_PATIENCE.max(self.usual))
    }
}

/// Returns the pauses between tries to reach the database.
pub(crate) fn pauses() -> Backoff {
    Backoff::new(Duration::from_millis(100), MAX_PAUSE)
}

/// Sessions that several tasks share; the tasks get them in the order in which they ask.
pub struct Sessions {
    context: Arc<Context>,
    idle: Mutex<Vec<Session>>,
    places: Arc<Semaphore>,
}

/// A session for one task, until it is dropped.
pub struct Loan<'a> {
    session: Session,
    sessions: &'a Sessions,
    _place: Option<OwnedSemaphorePermit>,
}

impl Sessions {
    /// Allows at most `most` sessions at the same time.
    #[must_use]
    pub fn new(context: &Arc<Context>, most: usize) -> Self {
        let places = Arc::new(Semaphore::new(most));
        Self { context: Arc::clone(context), idle: Mutex::default(), places }
    }

    /// Waits for a session; the one that was used last comes first.
    pub async fn take(&self) -> Loan<'_> {
        // The semaphore is never closed.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let session = self.idle.lock().pop().unwrap_or_else(|| Session::new(&self.context));
        Loan { session, sessions: self, _place: place }
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let session = std::mem::replace(&mut self.session, Session::new(&self.sessions.context));
        self.sessions.idle.lock().push(session);
    }
}

impl Deref for Loan<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl DerefMut for Loan<'_> {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

/// Opens a connection and sets it up for the relay.
pub async fn connect(context: &Context) -> Result<MySqlConnection, sqlx::Error> {
    database::connect(&context.login).await
}

/// Does the same as [`describe`], and names the table if the error is a wait for the lock of one.
pub(crate) async fn trouble(db: &mut MySqlConnection, error: &sqlx::Error) -> String {
    let lock = if locked::is_lock_wait(error) { locked::find(db).await.ok().flatten() } else { None };
    lock.map_or_else(|| describe(error), |lock| lock.to_string())
}

/// Returns the text of an error, with the remedy if one is known. The server's message is cut, because it may quote a
/// statement.
#[must_use]
pub fn describe(error: &sqlx::Error) -> String {
    explain(Trouble::Database(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_does_not_end_in_time_gets_twice_as_long_up_to_a_bound() {
        let seconds = Duration::from_secs;
        let mut patience = Patience { usual: seconds(5), now: seconds(5) };
        let given = [(); 4].map(|()| {
            patience.is_out();
            patience.now
        });
        assert_eq!(given, [10, 20, 40, 40].map(seconds));
        patience.took(seconds(9));
        assert_eq!(patience.now, seconds(18), "the next read is not given up first");
        patience.took(seconds(1));
        assert_eq!(patience.now, seconds(5));
        patience.took(seconds(39));
        assert_eq!(patience.now, seconds(40));
    }
}
