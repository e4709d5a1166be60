//! Kafka.
//!
//! A message counts as sent only on its own delivery report without error, from all in-sync replicas. The producer is
//! idempotent, so a partition keeps its order through retries. What idempotence does not cover is a message that times out
//! *alone*: later messages of its key would overtake it. So the relay's own deadline comes first, and then everything that
//! is in flight is given up together and goes back in order; librdkafka's time-out is longer and never strikes.
//!
//! On the wire: key = message key, value = payload (null for a tombstone), timestamp = when the message was enqueued, headers
//! `id` (the message id as UUID text), `type` and `content-type` where there are any, then the message's own in their order.
//!
//! A topic is looked up before its first message and after every sign of trouble. So a missing topic rejects its own
//! messages (`unroutable`) and holds up no others, and while no broker answers nothing is handed to librdkafka: those messages
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

use std::{
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
        let entry =
            Entry::new(properties::client(name, config, publish_deadline), Arc::clone(&reports)).map_err(|error| {
                KafkaConfigError::Client { sink: name.to_owned(), problem: properties::describe(&error) }
            })?;
        Ok(Self { reports, entry: Mutex::new(entry) })
    }

    /// Waits for a batch's turn to be handed over. Nothing else is before the entry is dropped.
    async fn enter(
        &self,
        company: Company,
        deadline: Instant,
    ) -> Result<(MutexGuard<'_, Entry>, Limits), PublishError> {
        let ticket = self.reports.fence.ticket();
        let entry = timeout_at(deadline.into(), self.entry.lock()).await;
        let entry = entry.map_err(|_late| unavailable("the batches before took all the time"))?;
        if company == Company::None && timeout_at(deadline.into(), entry.idle()).await.is_err() {
            return Err(PublishError::Unconfirmed("no time was left to send it by itself".to_owned()));
        }
        if self.reports.fence.pass(ticket, || ()).is_none() {
            return Err(unavailable("an earlier batch failed"));
        }
        Ok((entry, Limits { ticket, deadline }))
    }

    /// Publishes and waits for the reports; on the deadline gives up all that is in flight, of every batch.
    async fn attempt(&self, batch: &[Outgoing], company: Company, deadline: Instant) -> Vec<Attempt> {
        let open = self.reports.open(batch.len());
        let mut outcomes = vec![None; batch.len()];
        match self.enter(company, give_up_at(deadline)).await {
            Ok((mut entry, limits)) => {
                entry.hand_over(batch, &open, &mut outcomes, limits).await;
                open.seal(outcomes.iter().flatten().count());
                let producer = entry.producer();
                let _alone = (company == Company::None).then_some(entry);
                self.confirm(&open, producer, deadline).await;
            }
            Err(error) => {
                open.fail();
                outcomes.fill(Some(Err(error)));
            }
        }
        let reports = open.take().into_iter();
        outcomes
            .into_iter()
            .zip(reports)
            .zip(batch)
            .map(|((known, report), it)| Attempt::new(known, report, it))
            .collect()
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

    /// Sends again, each by itself, the messages that were refused with the request in which they travelled: several batches
    /// may have shared it.
    async fn alone(&self, batch: &[Outgoing], attempts: Vec<Attempt>, deadline: Instant) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for (message, attempt) in batch.iter().zip(attempts) {
            let in_time = Instant::now() < give_up_at(deadline);
            outcomes.push(match attempt {
                Attempt::SharedFate(_) if in_time => {
                    let again = self.attempt(std::slice::from_ref(message), Company::None, deadline).await.pop();
                    again.map_or_else(unknown, Attempt::outcome)
                }
                Attempt::SharedFate(_) => unknown(),
                attempt @ Attempt::Final(_) => attempt.outcome(),
            });
        }
        outcomes
    }
}

#[async_trait]
impl Sink for Kafka {
    fn key_order(&self) -> KeyOrder {
        KeyOrder::Pipelined
    }

    async fn publish(&self, batch: &[Outgoing], deadline: Instant) -> Vec<Outcome> {
        let attempts = self.attempt(batch, Company::Any, deadline).await;
        self.alone(batch, attempts, deadline).await
    }

    async fn check(&self, deadline: Instant) -> Result<(), PublishError> {
        let late = |_| unavailable("no broker answered in time");
        let entry = timeout_at(deadline.into(), self.entry.lock()).await.map_err(late)?;
        let (producer, topic) = (entry.producer(), entry.any_topic());
        drop(entry);
        let timeout = deadline.saturating_duration_since(Instant::now());
        timeout_at(deadline.into(), blocking(move || producer.ping(topic.as_deref(), timeout))).await.map_err(late)?
    }

    async fn close(&self) {
        let producer = self.entry.lock().await.producer();
        if tokio::task::spawn_blocking(move || producer.purge()).await.is_err() {
            tracing::warn!("the Kafka producer did not end cleanly");
        }
    }
}

/// With what messages travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Company {
    /// With whatever else is on the way.
    Any,
    /// With nothing else.
    None,
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

    fn outcome(self) -> Outcome {
        match self {
            Self::Final(outcome) | Self::SharedFate(outcome) => outcome,
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
