//! Kafka.
//!
//! A message counts as sent only on its own delivery report with an offset, from all in-sync replicas. The producer is
//! idempotent, so a partition keeps its order through retries. That holds from the first message that the broker has of
//! this producer; until then a key has only one message in flight. Idempotence does not cover a message that times out
//! *alone*: later messages of its key would overtake it. So librdkafka has no time-out: a longer one would strike in a
//! process that was suspended. At the deadline nothing more is handed over until the brokers have confirmed what they
//! take. The rest belongs to partitions that take nothing. It is given up together, while nothing is sent, and goes
//! back in order.
//!
//! On the wire: key = message key, value = payload (null for a tombstone). Headers: `id` (the message id as UUID text),
//! `type` and `content-type` if set, `outbox-topic`, then the message's own in their order. The timestamp is the time of the enqueue by
//! the database's clock, or the relay's time if that is earlier.
//!
//! No batch waits for the messages of another one before it is handed over. A message that may not overtake one of
//! these is turned away, and goes back.
//!
//! A topic is looked up before its first message and after every sign of trouble. So a missing topic refuses its own
//! messages (*unroutable*) and holds up no others. While no broker answers, nothing is handed to librdkafka: those
//! messages are *unavailable*, cost no attempt, and surely did not arrive. Publishing never creates topics.
//!
//! Kafka judges requests, not messages: it refuses a whole request that is too large or has an invalid record. Its
//! messages are sent again one by one with nothing else in flight, so that only the guilty one is rejected. Later
//! messages of their keys may have passed them. Requests of several messages are too large only if a topic's
//! `max.message.bytes` is below the producer's `batch.size` (1,000,000 bytes): set `batch.size` to at most that limit.

mod arrivals;
mod cluster;
mod entry;
mod fence;
mod outcome;
mod pause;
mod properties;
mod record;
mod reports;
mod throttling;
mod written;

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
    entry::{CallLimits, Entry, Producer, blocking, unavailable},
    fence::Ticket,
    reports::{OpenBatch, Report, Reports, turned_away},
};
use super::{Feed, KeyOrder, Outcome, Outgoing, PublishError, Receipt, Sink, arrivals::Arrivals};
use crate::{destination::Destination, error::RunError, settings};

pub use self::properties::check_properties;
#[doc(hidden)]
pub use self::{
    entry::{end, wait_until_ended},
    properties::{LARGEST, client},
};

/// The time before its deadline at which a batch gives up its messages in flight, so that the outcomes are there in
/// time.
const GIVING_UP: Duration = Duration::from_millis(500);

/// A Kafka cluster. See the [module](self) for its guarantees.
pub struct Kafka {
    reports: Arc<Reports>,
    entry: Mutex<Entry>,
}

/// An unusable configuration of a Kafka sink.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaConfigError {
    /// Properties that would weaken the guarantees.
    #[error("sink {sink}: {}", problems.join("; "))]
    Properties {
        /// The sink's name.
        sink: String,
        /// The necessary changes, one line each.
        problems: Vec<String>,
    },
    /// The text of librdkafka, without any value.
    #[error("sink {sink}: {problem}")]
    Client {
        /// The sink's name.
        sink: String,
        /// The necessary change.
        problem: String,
    },
}

/// Makes the sink of these settings.
pub(crate) fn feed(name: &str, config: &settings::KafkaConfig) -> Result<Feed, RunError> {
    Ok(Feed::direct(name, Arc::new(Kafka::new(name, config).map_err(RunError::configuration)?), 64, 1000))
}

/// Listens at a topic.
pub(crate) async fn listen(
    config: &settings::KafkaConfig,
    destination: &Destination,
    deadline: Instant,
) -> Result<Option<Box<dyn Arrivals>>, PublishError> {
    Ok(Some(Box::new(arrivals::KafkaArrivals::listen(config, &destination.target, deadline).await?)))
}

impl Kafka {
    /// Creates a producer for the sink of this name. Needs no network: it starts with the brokers down.
    ///
    /// # Errors
    ///
    /// If librdkafka or [`check_properties`] refuses the configuration. The error repeats no values.
    pub fn new(name: &str, config: &settings::KafkaConfig) -> Result<Self, KafkaConfigError> {
        let problems = check_properties(&config.properties);
        if !problems.is_empty() {
            return Err(KafkaConfigError::Properties { sink: name.to_owned(), problems });
        }
        let reports = Arc::new(Reports::default());
        let client = name.to_owned();
        let config = config.clone();
        let configure = move || properties::client(&client, &config);
        let entry = Entry::new(configure, Arc::clone(&reports)).map_err(|error| KafkaConfigError::Client {
            sink: name.to_owned(),
            problem: properties::describe(&error),
        })?;
        Ok(Self { reports, entry: Mutex::new(entry) })
    }

    /// Waits until it is a batch's turn to be handed over. No other batch has its turn before the entry is dropped.
    async fn enter(&self, limits: CallLimits) -> Result<MutexGuard<'_, Entry>, PublishError> {
        let entry = timeout_at(limits.deadline.into(), self.entry.lock()).await;
        let entry = entry.map_err(|_late| turned_away("the batches before took all the time"))?;
        let passed = self.reports.fence.pass(limits.ticket, || entry);
        passed.ok_or_else(|| turned_away("an earlier batch failed"))
    }

    /// Hands messages over.
    async fn send<'a>(&self, messages: &'a [&'a Outgoing], entry: &mut Entry, limits: CallLimits) -> Sent<'a> {
        let open = self.reports.open(messages);
        let mut outcomes = vec![None; messages.len()];
        entry.hand_over(messages, &open, &mut outcomes, limits).await;
        open.seal(outcomes.iter().flatten().count());
        Sent { messages, outcomes, open, producer: entry.producer() }
    }

    async fn together(&self, messages: &[&Outgoing], ticket: Ticket, deadline: Instant) -> (Vec<Attempt>, OpenBatch) {
        let limits = CallLimits { ticket, deadline: give_up_at(deadline) };
        match self.enter(limits).await {
            Ok(mut entry) => {
                let sent = self.send(messages, &mut entry, limits).await;
                drop(entry);
                self.confirm(&sent, deadline).await;
                sent.attempts()
            }
            Err(error) => {
                let open = self.reports.open(&[]);
                open.fail();
                (messages.iter().map(|_| Attempt::Final(Err(error.clone()))).collect(), open)
            }
        }
    }

    /// Sends messages again that were refused with their request, which may have carried several batches. They go one
    /// by one, which keeps their order, and with nothing else in flight. Messages left at the end of the time keep
    /// their outcome.
    async fn apart(
        &self,
        messages: &[&Outgoing],
        attempts: &mut [Attempt],
        ticket: Ticket,
        deadline: Instant,
    ) -> Vec<OpenBatch> {
        let mut opens = Vec::new();
        if !attempts.iter().any(Attempt::is_shared) {
            return opens;
        }
        let until = give_up_at(deadline);
        let limits = CallLimits { ticket, deadline: until };
        let Ok(mut entry) = self.enter(limits).await else { return opens };
        for (message, attempt) in messages.iter().zip(attempts).filter(|(_, attempt)| attempt.is_shared()) {
            if Instant::now() >= until || timeout_at(until.into(), entry.producer().idle()).await.is_err() {
                break;
            }
            let message = [*message];
            let sent = self.send(&message, &mut entry, limits).await;
            if timeout_at(until.into(), sent.open.done()).await.is_err() {
                self.give_up(&sent, deadline).await;
            }
            let (again, open) = sent.attempts();
            opens.push(open);
            *attempt = Attempt::Final(again.into_iter().next().map_or_else(unknown, Attempt::outcome));
        }
        opens
    }

    /// Waits for the reports, until shortly before the deadline. Then nothing is handed over until the brokers have
    /// confirmed what they take of all batches, and the rest is given up.
    async fn confirm(&self, sent: &Sent<'_>, deadline: Instant) {
        let until = give_up_at(deadline);
        if timeout_at(until.into(), sent.open.done()).await.is_ok() {
            return;
        }
        let left = deadline.saturating_duration_since(until);
        let entry = timeout_at((until + left / 3).into(), self.entry.lock()).await;
        if entry.is_err() {
            // This keeps other batches out as well, and turns them away.
            sent.open.fail();
        }
        sent.producer.quiet(until + left * 3 / 4).await;
        self.give_up(sent, deadline).await;
    }

    /// Gives up all messages in flight, of every batch. Returns when all of them are reported: until then a topic that
    /// was given up may seem healthy.
    async fn give_up(&self, sent: &Sent<'_>, deadline: Instant) {
        if sent.open.is_done() {
            return;
        }
        self.reports.doubt();
        let is_empty = self.reports.closed_during(Arc::clone(&sent.producer).empty(), deadline).await;
        if !is_empty || timeout_at(deadline.into(), sent.open.done()).await.is_err() {
            sent.open.fail();
            tracing::warn!("the Kafka producer did not give up its messages in time");
        }
    }
}

/// A batch that was handed over, and the outcomes of its messages that were not.
struct Sent<'a> {
    messages: &'a [&'a Outgoing],
    outcomes: Vec<Option<Outcome>>,
    open: OpenBatch,
    producer: Arc<Producer>,
}

impl Sent<'_> {
    fn attempts(self) -> (Vec<Attempt>, OpenBatch) {
        let known = self.outcomes.into_iter().zip(self.open.take()).zip(self.messages);
        (known.map(|((known, report), message)| Attempt::new(known, report, message)).collect(), self.open)
    }
}

#[async_trait]
impl Sink for Kafka {
    fn key_order(&self, message: &Outgoing) -> KeyOrder {
        let is_kept = || self.reports.written().keeps_order(&message.destination.target, message.key_hash);
        if message.key_hash == 0 || is_kept() { KeyOrder::Pipelined } else { KeyOrder::FirstAlone }
    }

    async fn publish(&self, batch: &[Outgoing], deadline: Instant) -> Vec<Outcome> {
        let ticket = self.reports.fence.ticket();
        let messages: Vec<&Outgoing> = batch.iter().collect();
        // While these exist, nothing is handed over behind a failure that the caller does not know of.
        let (mut attempts, open) = self.together(&messages, ticket, deadline).await;
        let _opens = self.apart(&messages, &mut attempts, ticket, deadline).await;
        if attempts.iter().any(Attempt::is_shared) {
            open.fail();
        }
        attempts.into_iter().map(|attempt| self.reports.explained(attempt.last())).collect()
    }

    async fn check(&self, deadline: Instant) -> Result<(), PublishError> {
        let late = |_| unavailable("no broker answered in time");
        let mut entry = timeout_at(deadline.into(), self.entry.lock()).await.map_err(late)?;
        let topic = self.reports.written().any_topic();
        let producer = entry.renewed().await?;
        drop(entry);
        // Ends before the deadline, so that the error can say why no broker answers.
        let timeout = deadline.saturating_duration_since(Instant::now()) * 9 / 10;
        timeout_at(deadline.into(), blocking(move || producer.ping(topic.as_deref(), timeout))).await.map_err(late)?
    }

    async fn close(&self) {
        let producer = self.entry.lock().await.producer();
        if tokio::task::spawn_blocking(move || producer.end()).await.is_err() {
            tracing::warn!("the Kafka producer did not end cleanly");
        }
    }
}

/// The result of one attempt to send a message.
enum Attempt {
    /// This outcome.
    Final(Outcome),
    /// Refused, perhaps because of another message in the same request.
    SharedFate(Outcome),
}

impl Attempt {
    fn new(known: Option<Outcome>, report: Report, message: &Outgoing) -> Self {
        match (known, report) {
            (Some(outcome), _) => Self::Final(outcome),
            (None, Report::None) => Self::Final(unknown()),
            (None, Report::Implied) => Self::Final(Err(PublishError::Unconfirmed(
                "librdkafka infers from a later message that it arrived; the broker has not confirmed it".to_owned(),
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

    /// Returns the outcome of a message that was alone.
    fn outcome(self) -> Outcome {
        match self {
            Self::Final(outcome) | Self::SharedFate(outcome) => outcome,
        }
    }

    /// Returns the outcome of a message that is not tried again.
    fn last(self) -> Outcome {
        match self {
            Self::SharedFate(Err(error)) => Err(PublishError::Unconfirmed(format!(
                "refused together with others, and no time was left to send it alone: {error}"
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
