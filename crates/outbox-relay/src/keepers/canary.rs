//! Sends a message of the relay's own through the whole way now and then, and reads it at its destination. This shows
//! stalls that no counter shows: a stranger that claims messages and sends them elsewhere, or a broker that confirms
//! messages and delivers none.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use outbox_core::{
    EnqueueError, Message, Outbox,
    sqlx::{self, Connection as _, MySqlConnection},
};
use tokio::time::timeout_at;
use uuid::Uuid;

use crate::{
    database,
    driver_errors::{Trouble, explain},
    pipeline::read::route::Routes,
    sink::{PublishError, arrivals::Arrivals},
    state::context::Context,
};

/// The time that the destination has to show its end, and so the longest delay of a stop.
const LISTEN: Duration = Duration::from_secs(5);
/// The type of the messages.
const TYPE: &str = "outbox.canary";

/// The reason why a canary did not come back.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("it did not come back within {0:?}")]
    Late(Duration),
    #[error("no route sends it to a Kafka topic or an exchange of RabbitMQ")]
    NoRoute,
    #[error("its destination cannot be read: {0}")]
    Unreadable(#[from] PublishError),
    #[error("it cannot be enqueued: {0}")]
    Enqueue(EnqueueError),
    #[error("it cannot be enqueued: {}", explain(Trouble::Database(.0)))]
    Database(#[from] sqlx::Error),
}

impl From<EnqueueError> for Lost {
    fn from(error: EnqueueError) -> Self {
        match error {
            // Its text leaves out what the server said.
            EnqueueError::Database(error) => Self::Database(error),
            other => Self::Enqueue(other),
        }
    }
}

/// Sends canaries to this topic until the relay is stopped.
pub(crate) async fn run(context: Arc<Context>, topic: String) {
    let metrics = &context.metrics;
    let interval = context.config.canary.interval;
    let returned = metrics.canary_last_return_timestamp_seconds.with_label_values(&[&topic]);
    let duration = metrics.canary_last_duration_seconds.with_label_values(&[&topic]);
    // A relay whose first canary is lost shall be seen, too.
    returned.set(now());
    let mut next = Instant::now();
    while context.sleep(next.saturating_duration_since(Instant::now())).await {
        next = Instant::now() + interval;
        let flight = timeout_at(next.into(), Box::pin(fly(&context, &topic, next)));
        match context.stop.run_until_cancelled(flight).await {
            None => return,
            Some(Ok(Ok(took))) => {
                returned.set(now());
                duration.set(took.as_secs_f64());
            }
            Some(Ok(Err(lost))) => tracing::warn!(topic, reason = %lost, "the canary is lost"),
            Some(Err(_)) => tracing::warn!(topic, reason = %Lost::Late(interval), "the canary is lost"),
        }
    }
}

/// Sends one canary, and returns the time from its commit to its arrival.
async fn fly(context: &Context, topic: &str, deadline: Instant) -> Result<Duration, Lost> {
    let lane = context.config.relay.lanes.first().copied().unwrap_or(0);
    let resolved = Routes::new(&context.config.routes).resolve(topic, Some(TYPE), None, lane);
    let destination = resolved.map_err(|_no_route| Lost::NoRoute)?.destination;
    let sink = context.config.sinks.get(&destination.sink).ok_or(Lost::NoRoute)?;
    let mut db = database::connect(&context.login).await?;
    let until = deadline.min(Instant::now() + LISTEN);
    let mut arrivals = sink.broker().listen(&destination, until).await?.ok_or(Lost::NoRoute)?;
    let outcome = there_and_back(&mut db, arrivals.as_mut(), (topic, lane), deadline).await;
    arrivals.close().await;
    // The outcome stands, however the connection ends.
    db.close().await.ok();
    outcome
}

async fn there_and_back(
    db: &mut MySqlConnection,
    arrivals: &mut dyn Arrivals,
    (topic, lane): (&str, u16),
    deadline: Instant,
) -> Result<Duration, Lost> {
    // Every envelope has the payload or the id. A canary that is late is not sent: nobody waits for it.
    let id = Uuid::now_v7();
    let message = Message::new(topic, id.to_string()).event_type(TYPE).message_id(id).lane(lane);
    let message = message.expires_after(deadline.saturating_duration_since(Instant::now()));
    let mut tx = db.begin().await?;
    Outbox::new().enqueue(&mut tx, message).await?;
    tx.commit().await?;
    let started = Instant::now();
    await_arrival(arrivals, &id.to_string()).await?;
    Ok(started.elapsed())
}

async fn await_arrival(arrivals: &mut dyn Arrivals, text: &str) -> Result<(), PublishError> {
    loop {
        let payload = arrivals.next().await?;
        if payload.windows(text.len()).any(|part| part == text.as_bytes()) {
            return Ok(());
        }
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
