//! The way into the producer: one batch at a time, in the order of the calls.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use rdkafka::{
    ClientConfig,
    config::FromClientConfigAndContext,
    error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code},
    metadata::MetadataTopic,
    producer::{Producer as _, PurgeConfig, ThreadedProducer},
};
use tokio::time::sleep;

use super::{
    fence::Ticket,
    outcome,
    record::{check_topic, record},
    reports::{Context, Open, Reports},
};
use crate::sink::{Outcome, Outgoing, PublishError};

/// How long the broker may take to say whether a topic exists.
const LOOKUP: Duration = Duration::from_secs(3);
/// For how long nobody asks again after the brokers gave no answer.
const PAUSE: Duration = Duration::from_millis(500);
/// How long to wait when librdkafka's queue is full, or not yet empty.
const FULL: Duration = Duration::from_millis(2);

/// The producer, ended on a thread of its own: its last step waits for librdkafka's threads.
pub(super) struct Producer(Option<ThreadedProducer<Context>>);

impl Producer {
    fn new(config: &ClientConfig, reports: &Arc<Reports>) -> KafkaResult<Self> {
        ThreadedProducer::from_config_and_context(config, Context(Arc::clone(reports))).map(|it| Self(Some(it)))
    }

    fn send(&self, message: &Outgoing, opaque: usize) -> Result<(), Code> {
        let Some(producer) = &self.0 else { return Err(Code::Unknown) };
        producer.send(record(message, opaque)).map_err(|(error, _)| error.rdkafka_error_code().unwrap_or(Code::Unknown))
    }

    fn is_broken(&self) -> bool {
        self.0.as_ref().is_none_or(|producer| producer.client().fatal_error().is_some())
    }

    /// Gives up every message that is not confirmed. Blocks.
    pub(super) fn purge(&self) {
        if let Some(producer) = &self.0 {
            producer.purge(PurgeConfig::default().queue().inflight());
        }
    }

    /// Asks the brokers for a topic. Blocks.
    pub(super) fn look_up(&self, topic: &str, timeout: Duration) -> Result<(), PublishError> {
        let Some(producer) = &self.0 else { return Err(unavailable("the producer has ended")) };
        let metadata =
            producer.client().fetch_metadata(Some(topic), timeout).map_err(|error| not_reached(producer, &error))?;
        let code = metadata.topics().iter().find(|it| it.name() == topic).and_then(MetadataTopic::error);
        code.map_or(Ok(()), |code| Err(outcome::refused(code.into())))
    }

    /// Whether a broker answers, by asking for this topic or, without one, for all. Blocks.
    pub(super) fn ping(&self, topic: Option<&str>, timeout: Duration) -> Result<(), PublishError> {
        let Some(producer) = &self.0 else { return Err(unavailable("the producer has ended")) };
        producer.client().fetch_metadata(topic, timeout).map_err(|error| not_reached(producer, &error))?;
        Ok(())
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let producer = self.0.take();
        std::thread::spawn(move || drop(producer));
    }
}

/// Until when a batch may be handed over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// No batch before it has failed in the meantime.
    pub(super) ticket: Ticket,
    pub(super) deadline: Instant,
}

/// What the sink knows of brokers and topics, and the producer.
pub(super) struct Entry {
    config: ClientConfig,
    reports: Arc<Reports>,
    producer: Arc<Producer>,
    /// Topics that the brokers said they have, since there last was a doubt.
    topics: HashSet<String>,
    doubts: u64,
    /// Until when the brokers count as down, and why.
    down: Option<(Instant, PublishError)>,
}

impl Entry {
    pub(super) fn new(config: ClientConfig, reports: Arc<Reports>) -> KafkaResult<Self> {
        let producer = Arc::new(Producer::new(&config, &reports)?);
        let doubts = reports.doubts();
        Ok(Self { config, reports, producer, topics: HashSet::new(), doubts, down: None })
    }

    pub(super) fn producer(&self) -> Arc<Producer> {
        Arc::clone(&self.producer)
    }

    /// Waits until every message that was handed over has its report.
    pub(super) async fn idle(&self) {
        while self.producer.0.as_ref().is_some_and(|producer| producer.in_flight_count() > 0) {
            sleep(FULL).await;
        }
    }

    /// A topic that the brokers have.
    pub(super) fn any_topic(&self) -> Option<String> {
        self.topics.iter().next().cloned()
    }

    /// Hands the messages to librdkafka and puts the outcome of those that it did not take into `outcomes`.
    pub(super) async fn hand_over(
        &mut self,
        messages: &[&Outgoing],
        open: &Open,
        outcomes: &mut [Option<Outcome>],
        limits: Limits,
    ) {
        let mut down = self.refresh().err();
        // Asked for once a batch: it may exist by the next one.
        let mut refused: HashMap<&str, PublishError> = HashMap::new();
        for (index, (&message, outcome)) in messages.iter().zip(outcomes).enumerate() {
            let target = message.destination.target.as_str();
            let known = match refused.get(target) {
                Some(error) => Err(error.clone()),
                None => self.topic(target, limits.deadline, &mut down).await,
            };
            if let Err(error) = &known {
                refused.entry(target).or_insert_with(|| error.clone());
            }
            let handed_over = match (&down, &known) {
                (Some(error), _) | (None, Err(error)) => Err(error.clone()),
                (None, Ok(())) => self.send(message, open.opaque(index), limits).await,
            };
            if let Err(error) = handed_over {
                if !matches!(error, PublishError::Rejected { .. }) {
                    // Neither the rest of this batch nor a later one may overtake this message.
                    open.fail();
                    down.get_or_insert_with(|| error.clone());
                }
                *outcome = Some(Err(error));
            }
        }
    }

    /// Replaces a producer that ended with a fatal error, and forgets the topics when there was a doubt.
    fn refresh(&mut self) -> Result<(), PublishError> {
        if self.producer.is_broken() {
            tracing::warn!("the Kafka producer ended with a fatal error: starting a new one");
            let producer =
                Producer::new(&self.config, &self.reports).map_err(|error| unavailable(&error.to_string()))?;
            self.producer = Arc::new(producer);
            self.reports.doubt();
        }
        let doubts = self.reports.doubts();
        if doubts != self.doubts {
            self.topics.clear();
            self.doubts = doubts;
        }
        Ok(())
    }

    /// Whether the topic exists. An error other than *rejected* goes to `down`: no broker answers.
    async fn topic(
        &mut self,
        topic: &str,
        deadline: Instant,
        down: &mut Option<PublishError>,
    ) -> Result<(), PublishError> {
        if down.is_some() || self.topics.contains(topic) {
            return Ok(());
        }
        check_topic(topic)?;
        match self.ask(topic, deadline).await {
            Ok(()) => {
                self.topics.insert(topic.to_owned());
                Ok(())
            }
            Err(error @ PublishError::Rejected { .. }) => Err(error),
            Err(error) => {
                *down = Some(error);
                Ok(())
            }
        }
    }

    async fn ask(&mut self, topic: &str, deadline: Instant) -> Result<(), PublishError> {
        if let Some((until, error)) = &self.down
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        self.down = None;
        let timeout = deadline.saturating_duration_since(Instant::now()).min(LOOKUP);
        let (producer, name) = (self.producer(), topic.to_owned());
        let answer = blocking(move || producer.look_up(&name, timeout)).await;
        if let Err(error @ PublishError::Unavailable(_)) = &answer {
            self.down = Some((Instant::now() + PAUSE, error.clone()));
        }
        answer
    }

    /// Hands over one message; waits while librdkafka's queue is full, so that the order is kept.
    async fn send(&self, message: &Outgoing, opaque: usize, limits: Limits) -> Result<(), PublishError> {
        loop {
            match self.reports.fence.pass(limits.ticket, || self.producer.send(message, opaque)) {
                Some(Ok(())) => return Ok(()),
                Some(Err(Code::QueueFull)) if Instant::now() + FULL < limits.deadline => sleep(FULL).await,
                Some(Err(code)) => return Err(outcome::refused(code)),
                None => return Err(unavailable("an earlier message failed")),
            }
        }
    }
}

/// Runs what blocks off the async threads.
pub(super) async fn blocking(
    work: impl FnOnce() -> Result<(), PublishError> + Send + 'static,
) -> Result<(), PublishError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(unavailable(&error.to_string())))
}

/// What librdkafka says of a question without answer is a time-out; what it says of its connections is the cause.
fn not_reached(producer: &ThreadedProducer<Context>, error: &KafkaError) -> PublishError {
    match (error.rdkafka_error_code(), producer.context().0.trouble()) {
        (Some(_), Some(trouble)) => unavailable(&format!("no broker answers: {trouble}")),
        (Some(code), None) => unavailable(&format!("no broker answers: {code}")),
        (None, _) => PublishError::Rejected { reason: "invalid", detail: "not a name for a Kafka topic".to_owned() },
    }
}

pub(super) fn unavailable(text: &str) -> PublishError {
    PublishError::Unavailable(text.to_owned())
}
