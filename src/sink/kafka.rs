//! Kafka.
//!
//! A message counts as sent only on its own delivery report with an offset, from all in-sync replicas. The producer is
//! idempotent, so a partition keeps its order through retries, from the first message on that the broker has of this producer; until
//! then a key has only one message on the way. What idempotence does not cover is a message that times out
//! *alone*: later messages of its key would overtake it. So the relay's own deadline comes first, and then everything that
//! is in flight is given up together and goes back in order; librdkafka's time-out is longer and never strikes.
//!
//! On the wire: key = message key, value = payload (null for a tombstone), timestamp = when the message was enqueued, headers
//! `id` (the message id as UUID text), `type` and `content-type` where there are any, then the message's own in their order.
//!
//! A topic is looked up before its first message and after every sign of trouble. So a missing topic refuses its own
//! messages (*unroutable*) and holds up no others, and while no broker answers nothing is handed to librdkafka: those messages
//! are *unavailable*, cost no attempt, and surely did not arrive. Topics are never created by publishing.
//!
//! Kafka judges requests, not messages: one that is too large or has an invalid record is refused as a whole. Its messages
//! are sent again one by one with nothing else on the way, so that only the guilty one is rejected; later messages of their keys
//! may have passed them. This needs a topic whose `max.message.bytes` is below the producer's `batch.size` (1,000,000 bytes): set that to the smaller.

mod entry;
mod fence;
mod outcome;
mod properties;
mod record;
mod reports;
mod written;

use std::{
    ops::DerefMut,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use tokio::{
    sync::{Mutex, MutexGuard},
    time::timeout_at,
};

use self::{
    entry::{Entry, Limits, Producer, blocking, unavailable},
    fence::Ticket,
    reports::{Open, Report, Reports},
};
use super::{KeyOrder, Outcome, Outgoing, PublishError, Receipt, Sink};
use crate::config;

pub use self::properties::check_properties;

/// How long before its deadline a batch gives up what is in flight, so that the outcomes are there in time.
const GIVING_UP: Duration = Duration::from_millis(250);

/// A Kafka cluster. See the [module](self) for what it promises.
pub struct Kafka {
    reports: Arc<Reports>,
    entry: Mutex<Entry>,
}

/// The configuration of a Kafka sink cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaConfigError {
    /// Properties that would weaken the guarantees.
    #[error("sink {sink}: {}", problems.join("; "))]
    Properties {
        /// The sink's name.
        sink: String,
        /// What to change, one line each.
        problems: Vec<String>,
    },
    /// What librdkafka says, without any value.
    #[error("sink {sink}: {problem}")]
    Client {
        /// The sink's name.
        sink: String,
        /// What to change.
        problem: String,
    },
}

impl Kafka {
    /// A producer for the sink of this name. Needs no network: it starts with the brokers down.
    ///
    /// No batch may have a deadline further away than `publish_deadline`.
    ///
    /// # Errors
    ///
    /// When librdkafka refuses the configuration or [`check_properties`] does. Values are not repeated.
    pub fn new(name: &str, config: &config::Kafka, publish_deadline: Duration) -> Result<Self, KafkaConfigError> {
        let problems = check_properties(&config.properties);
        if !problems.is_empty() {
            return Err(KafkaConfigError::Properties { sink: name.to_owned(), problems });
        }
        let reports = Arc::new(Reports::default());
        let (client, config) = (name.to_owned(), config.clone());
        let configure = move || properties::client(&client, &config, publish_deadline);
        let entry = Entry::new(configure, Arc::clone(&reports)).map_err(|error| KafkaConfigError::Client {
            sink: name.to_owned(),
            problem: properties::describe(&error),
        })?;
        Ok(Self { reports, entry: Mutex::new(entry) })
    }

    /// Waits until it is a batch's turn to be handed over. No other one is before the entry is dropped.
    async fn enter(&self, ticket: Ticket, deadline: Instant) -> Result<(MutexGuard<'_, Entry>, Limits), PublishError> {
        let entry = timeout_at(deadline.into(), self.entry.lock()).await;
        let entry = entry.map_err(|_late| unavailable("the batches before took all the time"))?;
        if self.reports.fence.pass(ticket, || ()).is_none() {
            return Err(unavailable("an earlier batch failed"));
        }
        Ok((entry, Limits { ticket, deadline }))
    }

    /// Hands messages over, lets go of the entry, and waits for the reports; on the deadline gives up all that is in flight, of
    /// every batch.
    async fn send(
        &self,
        messages: &[&Outgoing],
        mut entry: impl DerefMut<Target = Entry>,
        limits: Limits,
        deadline: Instant,
    ) -> (Vec<Attempt>, Open) {
        let open = self.reports.open(messages);
        let mut outcomes = vec![None; messages.len()];
        entry.hand_over(messages, &open, &mut outcomes, limits).await;
        open.seal(outcomes.iter().flatten().count());
        let producer = entry.producer();
        drop(entry);
        self.confirm(&open, producer, deadline).await;
        let known = outcomes.into_iter().zip(open.take()).zip(messages);
        (known.map(|((known, report), message)| Attempt::new(known, report, message)).collect(), open)
    }

    async fn together(&self, messages: &[&Outgoing], ticket: Ticket, deadline: Instant) -> (Vec<Attempt>, Open) {
        match self.enter(ticket, give_up_at(deadline)).await {
            Ok((entry, limits)) => self.send(messages, entry, limits, deadline).await,
            Err(error) => {
                let open = self.reports.open(&[]);
                open.fail();
                (messages.iter().map(|_| Attempt::Final(Err(error.clone()))).collect(), open)
            }
        }
    }

    /// Sends again what was refused with the request in which it travelled, which may have been that of several batches: one by one,
    /// which keeps their order, and with nothing else on the way. What is left when the time is over stays as it is.
    async fn apart(
        &self,
        messages: &[&Outgoing],
        attempts: &mut [Attempt],
        ticket: Ticket,
        deadline: Instant,
    ) -> Vec<Open> {
        let mut opens = Vec::new();
        if !attempts.iter().any(Attempt::is_shared) {
            return opens;
        }
        let until = give_up_at(deadline);
        let Ok((mut entry, limits)) = self.enter(ticket, until).await else { return opens };
        for (message, attempt) in messages.iter().zip(attempts).filter(|(_, attempt)| attempt.is_shared()) {
            if Instant::now() >= until || timeout_at(until.into(), entry.idle()).await.is_err() {
                break;
            }
            let (again, open) = self.send(&[*message], &mut *entry, limits, deadline).await;
            opens.push(open);
            *attempt = Attempt::Final(again.into_iter().next().map_or_else(unknown, Attempt::outcome));
        }
        opens
    }

    async fn confirm(&self, open: &Open, producer: Arc<Producer>, deadline: Instant) {
        if timeout_at(give_up_at(deadline).into(), open.done()).await.is_ok() {
            return;
        }
        open.fail();
        self.reports.doubt();
        let purge = tokio::task::spawn_blocking(move || producer.purge());
        if timeout_at(deadline.into(), async { tokio::join!(purge, open.done()) }).await.is_err() {
            tracing::warn!("the Kafka producer did not give up its messages in time");
        }
    }
}

#[async_trait]
impl Sink for Kafka {
    fn key_order(&self) -> KeyOrder {
        KeyOrder::Pipelined
    }

    async fn publish(&self, batch: &[Outgoing], deadline: Instant) -> Vec<Outcome> {
        let ticket = self.reports.fence.ticket();
        let messages: Vec<&Outgoing> = batch.iter().collect();
        // Until these are dropped nothing is handed over behind a failure that the caller does not know of.
        let (mut attempts, open) = self.together(&messages, ticket, deadline).await;
        let _opens = self.apart(&messages, &mut attempts, ticket, deadline).await;
        if attempts.iter().any(Attempt::is_shared) {
            open.fail();
        }
        attempts.into_iter().map(Attempt::last).collect()
    }

    async fn check(&self, deadline: Instant) -> Result<(), PublishError> {
        let late = |_| unavailable("no broker answered in time");
        let mut entry = timeout_at(deadline.into(), self.entry.lock()).await.map_err(late)?;
        let topic = self.reports.written().any_topic();
        let producer = entry.renewed()?;
        drop(entry);
        // Ends before the deadline: then it says why no broker answers.
        let timeout = deadline.saturating_duration_since(Instant::now()) * 9 / 10;
        timeout_at(deadline.into(), blocking(move || producer.ping(topic.as_deref(), timeout))).await.map_err(late)?
    }

    async fn close(&self) {
        let producer = self.entry.lock().await.producer();
        if tokio::task::spawn_blocking(move || producer.purge()).await.is_err() {
            tracing::warn!("the Kafka producer did not end cleanly");
        }
    }
}

/// What one attempt says of a message.
enum Attempt {
    /// This.
    Final(Outcome),
    /// It was refused, perhaps because of another message in the same request.
    SharedFate(Outcome),
}

impl Attempt {
    fn new(known: Option<Outcome>, report: Report, message: &Outgoing) -> Self {
        match (known, report) {
            (Some(outcome), _) => Self::Final(outcome),
            (None, Report::None) => Self::Final(unknown()),
            (None, Report::Implied) => Self::Final(Err(PublishError::Unconfirmed(
                "librdkafka concludes from a later one that it arrived; the broker has not said so".to_owned(),
            ))),
            (None, Report::Sent { partition, offset }) => {
                let place = format!("{}/{partition}@{offset}", message.destination.target);
                Self::Final(Ok(Receipt::new(&place)))
            }
            (None, Report::Failed(code)) if outcome::is_shared_fate(code) => {
                Self::SharedFate(Err(outcome::reported(code)))
            }
            (None, Report::Failed(code)) => Self::Final(Err(outcome::reported(code))),
        }
    }

    const fn is_shared(&self) -> bool {
        matches!(self, Self::SharedFate(_))
    }

    /// Of a message that was alone.
    fn outcome(self) -> Outcome {
        match self {
            Self::Final(outcome) | Self::SharedFate(outcome) => outcome,
        }
    }

    /// Of a message that nobody tries again.
    fn last(self) -> Outcome {
        match self {
            Self::SharedFate(Err(error)) => Err(PublishError::Unconfirmed(format!(
                "refused with others, and no time was left to part them: {error}"
            ))),
            attempt => attempt.outcome(),
        }
    }
}

fn unknown() -> Outcome {
    Err(PublishError::Unconfirmed("no report before the deadline".to_owned()))
}

fn give_up_at(deadline: Instant) -> Instant {
    let now = Instant::now();
    let left = deadline.saturating_duration_since(now);
    now + left.saturating_sub(GIVING_UP.min(left / 4))
}
