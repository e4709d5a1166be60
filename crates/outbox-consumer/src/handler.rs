use std::sync::Arc;

use futures_util::future::BoxFuture;
use outbox_core::sqlx::MySqlConnection;
use tracing::{Instrument as _, Span};

use crate::{Delivery, Failure};

/// A service's work on a message.
///
/// ```
/// use outbox_consumer::{Delivery, Failure, Handler};
/// use outbox_core::sqlx::{self, MySqlConnection};
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
    /// if this returns without failure. It is called again after a failure, and never again after its commit. Messages
    /// of one key come in their order and one at a time, except one that is given back by [`Failure::Requeue`], and a
    /// dead one that is retried.
    ///
    /// It must not commit, and must pass errors of the database on. Its work outside the transaction (a call of another
    /// service) can happen more than once; the message id helps to make that harmless.
    fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> impl Future<Output = Result<(), Failure>> + Send;
}

impl<H: Handler> Handler for Arc<H> {
    async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
        H::handle(self, tx, message).await
    }
}

/// A closure as a handler. Its future is boxed, because a closure cannot promise in its type that its future may move
/// between threads.
///
/// ```
/// use outbox_consumer::{Handler, handler_fn};
/// use outbox_core::sqlx;
///
/// fn billing(currency: &'static str) -> impl Handler {
///     handler_fn(move |tx, message| {
///         Box::pin(async move {
///             let order: u64 = message.json()?;
///             let sql = "INSERT INTO invoices (order_id, currency) VALUES (?, ?)";
///             sqlx::query(sql).bind(order).bind(currency).execute(tx).await?;
///             Ok(())
///         })
///     })
/// }
/// ```
pub fn handler_fn<F>(work: F) -> impl Handler
where
    F: for<'a> Fn(&'a mut MySqlConnection, &'a Delivery) -> BoxFuture<'a, Result<(), Failure>> + Send + Sync + 'static,
{
    HandlerFn(work)
}

struct HandlerFn<F>(F);

impl<F> Handler for HandlerFn<F>
where
    F: for<'a> Fn(&'a mut MySqlConnection, &'a Delivery) -> BoxFuture<'a, Result<(), Failure>> + Send + Sync + 'static,
{
    async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
        (self.0)(tx, message).await
    }
}

/// A handler whose every attempt at a message is in the span that `span` makes: of a consumer or of a worker.
///
/// The span continues the trace of the enqueue if `span` gives it the context that the message carries in its headers
/// `traceparent` and `tracestate`, by the version of OpenTelemetry that the service has; the README shows how. After a
/// failure that the handler returns, the fields `otel.status_code` and `error.type` of the span are set, where it has
/// them.
pub fn in_span<H, F>(handler: H, span: F) -> impl Handler
where
    H: Handler,
    F: Fn(&Delivery) -> Span + Send + Sync + 'static,
{
    InSpan { handler, span }
}

struct InSpan<H, F> {
    handler: H,
    span: F,
}

impl<H, F> Handler for InSpan<H, F>
where
    H: Handler,
    F: Fn(&Delivery) -> Span + Send + Sync + 'static,
{
    async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
        let span = (self.span)(message);
        let outcome = self.handler.handle(tx, message).instrument(span.clone()).await;
        if let Err(failure) = &outcome {
            span.record("otel.status_code", "ERROR").record("error.type", failure.kind());
        }
        outcome
    }
}
