use std::{error::Error, fmt};

use outbox_core::{is_passing, sqlx::MySqlConnection};

use crate::Delivery;

/// Any error.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A service's work on a message.
///
/// ```
/// use outbox_consumer::{Delivery, Failure, Handler};
/// use outbox_core::{is_passing, sqlx::MySqlConnection};
///
/// struct Billing;
///
/// #[derive(serde::Deserialize)]
/// struct OrderPlaced { order: u64, cents: u64 }
///
/// impl Handler for Billing {
///     async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
///         let placed: OrderPlaced = message.json()?;
///         sqlx::query("INSERT INTO invoices (order_id, cents) VALUES (?, ?)")
///             .bind(placed.order).bind(placed.cents).execute(tx).await?;
///         Ok(())
///     }
/// }
/// ```
pub trait Handler: Send + Sync + 'static {
    /// Does the work of one message in the transaction `tx`. That also marks the message as processed, and is committed
    /// if this returns without failure. It is called again after a failure, never at the same time for two messages of
    /// one key, and never again after its commit. Messages of one key come in their order, except one that is given
    /// back by [`Failure::Requeue`].
    ///
    /// It must not commit, and must pass errors of the database on. Its work outside the transaction (a call of another
    /// service) can happen more than once; the message id helps to make that harmless.
    fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Why a message could not be processed, and its next step. The writes of its handler are rolled back.
///
/// `?` turns every error into [`Failure::Retry`].
#[derive(Debug)]
pub enum Failure {
    /// It may succeed next time: retried after a wait, dead after the last attempt. A passing failure of the database
    /// (a deadlock, a lost connection, a full disk) is retried without end.
    Retry(BoxError),
    /// It will never succeed: dead now.
    Dead(BoxError),
    /// Another consumer may succeed: RabbitMQ gives it to any consumer of the queue, and later messages of its key go
    /// first. On Kafka it is retried without end, since a partition has one consumer. A worker retries it without end,
    /// in its order.
    Requeue(BoxError),
}

impl Failure {
    /// [`Failure::Dead`] with this error or text.
    pub fn dead(error: impl Into<BoxError>) -> Self {
        Self::Dead(error.into())
    }

    /// [`Failure::Requeue`] with this error or text.
    pub fn requeue(error: impl Into<BoxError>) -> Self {
        Self::Requeue(error.into())
    }

    pub(crate) fn error(&self) -> &BoxError {
        let (Self::Retry(error) | Self::Dead(error) | Self::Requeue(error)) = self;
        error
    }

    /// Whether the database caused it, and not the message: it was unreachable, or chose this transaction to end a
    /// deadlock. Such a failure costs no attempt.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Retry(error) if is_passing(error.as_ref()))
    }
}

impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Retry(error.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error())?;
        let mut cause = self.error().source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
