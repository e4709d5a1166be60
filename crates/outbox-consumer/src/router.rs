use std::{collections::HashMap, fmt};

use futures_util::future::BoxFuture;
use outbox_core::{Event, sqlx::MySqlConnection};
use serde::de::DeserializeOwned;

use crate::{Delivery, Failure, Handler, handler_fn};

/// The outcome of a message whose type has no handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// It is dead at once, with the reason `refused`: for a consumer that should know all types.
    Dead,
    /// It counts as processed, and is logged at the level DEBUG: for a topic with types that do not concern this
    /// consumer.
    Ignore,
}

/// Gives each message to the handler of its event type ([`Contents::event_type`](outbox_core::Contents)).
///
/// ```
/// use outbox_consumer::{Handler, Router, Unknown};
/// use outbox_core::{Event, sqlx};
///
/// #[derive(serde::Serialize, serde::Deserialize, Event)]
/// #[event(topic = "orders", type = "order.placed.v1")]
/// struct OrderPlaced { #[event(key)] order: u64, cents: u64 }
///
/// #[derive(serde::Deserialize)]
/// struct Cancelled { order: u64 }
///
/// fn billing() -> impl Handler {
///     Router::new(Unknown::Ignore)
///         .on_event(|tx, placed: OrderPlaced, _message| Box::pin(async move {
///             let sql = "INSERT INTO invoices (order_id, cents) VALUES (?, ?)";
///             sqlx::query(sql).bind(placed.order).bind(placed.cents).execute(tx).await?;
///             Ok(())
///         }))
///         .on("order.cancelled.v1", |tx, cancelled: Cancelled, _message| Box::pin(async move {
///             sqlx::query("DELETE FROM invoices WHERE order_id = ?").bind(cancelled.order).execute(tx).await?;
///             Ok(())
///         }))
/// }
/// ```
pub struct Router {
    handlers: HashMap<String, Box<dyn DynHandler>>,
    unknown: Unknown,
}

impl Router {
    /// A router without handlers. A message without a type is one of an unknown type, too.
    #[must_use]
    pub fn new(unknown: Unknown) -> Self {
        Self { handlers: HashMap::new(), unknown }
    }

    /// Gives messages of this type to a handler, which reads the payload itself. A second handler of a type replaces
    /// the first.
    #[must_use]
    pub fn route(mut self, event_type: impl Into<String>, handler: impl Handler) -> Self {
        self.handlers.insert(event_type.into(), Box::new(handler));
        self
    }

    /// Reads the payload of messages of this type as JSON, and gives it to the closure. A payload that cannot be read
    /// is [`Failure::Dead`], as by [`Delivery::json`].
    #[must_use]
    pub fn on<T, F>(self, event_type: impl Into<String>, work: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: for<'a> Fn(&'a mut MySqlConnection, T, &'a Delivery) -> BoxFuture<'a, Result<(), Failure>>
            + Send
            + Sync
            + 'static,
    {
        let handler = handler_fn(move |tx, message| match message.json() {
            Ok(payload) => work(tx, payload, message),
            Err(failure) => Box::pin(async { Err(failure) }),
        });
        self.route(event_type, handler)
    }

    /// [`Router::on`] for [`Event::TYPE`] of an event that the sender shares with this service. Its payload must be
    /// JSON.
    #[must_use]
    pub fn on_event<E, F>(self, work: F) -> Self
    where
        E: Event + DeserializeOwned + Send + 'static,
        F: for<'a> Fn(&'a mut MySqlConnection, E, &'a Delivery) -> BoxFuture<'a, Result<(), Failure>>
            + Send
            + Sync
            + 'static,
    {
        self.on(E::TYPE, work)
    }
}

impl Handler for Router {
    async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
        let event_type = message.contents.event_type.as_deref();
        if let Some(handler) = event_type.and_then(|event_type| self.handlers.get(event_type)) {
            return handler.call(tx, message).await;
        }
        match self.unknown {
            Unknown::Dead => Err(Failure::dead(format!("no handler for the event type {event_type:?}"))),
            Unknown::Ignore => {
                tracing::debug!(message_id = %message.id, event_type, "a message of an unknown type is ignored");
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Router {{ unknown: {:?}, types: {:?} }}", self.unknown, self.handlers.keys())
    }
}

/// A [`Handler`] whose type is erased.
trait DynHandler: Send + Sync {
    fn call<'a>(&'a self, tx: &'a mut MySqlConnection, message: &'a Delivery) -> BoxFuture<'a, Result<(), Failure>>;
}

impl<H: Handler> DynHandler for H {
    fn call<'a>(&'a self, tx: &'a mut MySqlConnection, message: &'a Delivery) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(Handler::handle(self, tx, message))
    }
}
