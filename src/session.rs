//! A long-lived connection of the relay's own that is never left half-way through a call.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::{
    sqlx::{self, ConnectOptions as _, MySqlConnection},
    store,
};

use crate::context::Context;

/// A connection that is opened when it is first needed, and again after it was lost.
///
/// A call that does not end (deadline, cancelled future) takes its connection with it: the protocol would be out of step, and
/// the server rolls back what was open.
pub struct Session {
    context: Arc<Context>,
    connection: Option<MySqlConnection>,
    failures: u32,
}

/// Longest pause between two tries to reach the database.
const MAX_PAUSE: Duration = Duration::from_secs(2);

impl Session {
    /// A session that is not connected yet.
    pub fn new(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context), connection: None, failures: 0 }
    }

    /// Runs one operation, within the settle deadline.
    ///
    /// After an error nothing is open on the server that belongs to this session; whether the operation took effect is unknown
    /// unless the server itself refused it.
    pub async fn run<T>(
        &mut self,
        operation: &'static str,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        let deadline = self.context.config.relay.settle_deadline;
        let started = Instant::now();
        let outcome = match tokio::time::timeout(deadline, self.attempt(work)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
        };
        let duration = &self.context.metrics.db_call_duration_seconds;
        duration.with_label_values(&[operation]).observe(started.elapsed().as_secs_f64());
        self.report(operation, &outcome);
        outcome
    }

    async fn attempt<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        // The connection is out of its place while the call runs: a future that is dropped drops it too.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.context).await?,
        };
        let outcome = work(&mut connection).await;
        let refused = outcome.as_ref().is_err_and(|error| error.as_database_error().is_some());
        if outcome.is_ok() || refused && store::session::rollback(&mut connection).await.is_ok() {
            self.connection = Some(connection);
        }
        outcome
    }

    fn report<T>(&mut self, operation: &'static str, outcome: &Result<T, sqlx::Error>) {
        let Err(error) = outcome else {
            if self.failures > 0 {
                tracing::info!(operation, "the database answers again");
            }
            self.failures = 0;
            return self.context.health.dependency("database", Ok(()));
        };
        self.failures += 1;
        let kind = if error.as_database_error().is_some() { "refused" } else { "lost" };
        self.context.metrics.db_errors_total.with_label_values(&[operation, kind]).inc();
        tracing::warn!(operation, kind, error = %describe(error), "a database call failed");
        if kind == "lost" {
            self.context.health.dependency("database", Err(describe(error)));
        }
    }

    /// Waits before the next try: longer after each failure in a row, at most two seconds.
    pub async fn pause(&self) {
        let pause = Duration::from_millis(50).saturating_mul(1 << self.failures.min(6));
        tokio::time::sleep(pause.min(MAX_PAUSE)).await;
    }
}

/// Opens a connection and sets it up for the relay.
pub async fn connect(context: &Context) -> Result<MySqlConnection, sqlx::Error> {
    let mut connection = context.options.connect().await?;
    store::session::prepare(&mut connection).await?;
    Ok(connection)
}

/// The text of an error without what it may quote of a statement.
pub(crate) fn describe(error: &sqlx::Error) -> String {
    match error.as_database_error() {
        Some(database) => format!(
            "the server refused: {} ({})",
            database.code().unwrap_or_default(),
            database.message().chars().take(200).collect::<String>()
        ),
        None => error.to_string(),
    }
}
