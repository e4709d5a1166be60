//! The way into the producer: one batch at a time, in the order of the calls.

use std::{
    mem,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::Mutex as SyncMutex;
use rdkafka::{
    ClientConfig, TopicPartitionList,
    config::FromClientConfigAndContext,
    error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code},
    metadata::MetadataTopic,
    producer::{Producer as _, PurgeConfig, ThreadedProducer},
};
use tokio::time::{sleep, timeout, timeout_at};

use super::{
    fence::Ticket,
    outcome, pause, properties,
    record::{check_topic, record},
    reports::{OpenBatch, Report, ReportContext, Reports, turned_away},
    written::{PartitionEntry, Written},
};
use crate::{
    driver_errors::{Trouble, explain},
    sink::{Outcome, Outgoing, PublishError},
};

/// The time that the broker has to say whether a topic exists.
const LOOKUP: Duration = Duration::from_secs(3);
/// The pause after a question that the brokers did not answer.
const PAUSE: Duration = Duration::from_millis(500);
/// The pause while librdkafka's queue is full, or not yet empty.
const FULL: Duration = Duration::from_millis(2);
/// The pause between two purges.
const AGAIN: Duration = Duration::from_millis(20);
/// After this time without a report none is expected soon: it is longer than a healthy broker takes.
const QUIET: Duration = Duration::from_millis(100);
/// The time for which a written partition is remembered: a broker forgets a producer that was idle for a day (its
/// `producer.id.expiration.ms`).
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The producer. It ends on a thread of its own, because its last step waits for librdkafka's threads.
pub(super) struct Producer(Option<ThreadedProducer<ReportContext>>);

impl Producer {
    fn new(config: &ClientConfig, reports: &Arc<Reports>) -> KafkaResult<Self> {
        ThreadedProducer::from_config_and_context(config, ReportContext(Arc::clone(reports))).map(|it| Self(Some(it)))
    }

    fn send(&self, message: &Outgoing, opaque: usize) -> Result<(), Code> {
        let Some(producer) = &self.0 else { return Err(Code::Unknown) };
        producer.send(record(message, opaque)).map_err(|(error, _)| error.rdkafka_error_code().unwrap_or(Code::Unknown))
    }

    fn is_broken(&self) -> bool {
        self.0.as_ref().is_none_or(|producer| producer.client().fatal_error().is_some())
    }

    /// Returns the number of messages without a report.
    fn in_flight(&self) -> i32 {
        self.0.as_ref().map_or(0, ThreadedProducer::in_flight_count)
    }

    /// Waits until every message that was handed over has its report.
    pub(super) async fn idle(&self) {
        while self.in_flight() > 0 {
            sleep(FULL).await;
        }
    }

    /// Waits until no report has come for a while, at most until then. The brokers do not take the messages left.
    pub(super) async fn quiet(&self, until: Instant) {
        let mut left = self.in_flight();
        while left > 0 && Instant::now() < until {
            sleep(QUIET.min(until.saturating_duration_since(Instant::now()))).await;
            let before = mem::replace(&mut left, self.in_flight());
            if before == left {
                break;
            }
        }
    }

    /// Gives up every message that is not confirmed, until every one has its report. One purge may miss messages of a
    /// partition that changes its leader meanwhile: nothing is sent before the end.
    pub(super) async fn empty(self: Arc<Self>) {
        let producer = Arc::clone(&self);
        let pause = tokio::task::spawn_blocking(move || producer.pause());
        // An error means that the runtime ends.
        let Ok(paused) = pause.await else { return };
        loop {
            let producer = Arc::clone(&self);
            tokio::task::spawn_blocking(move || producer.purge()).await.ok();
            if timeout(AGAIN, self.idle()).await.is_ok() {
                break;
            }
        }
        let resume = move || {
            self.resume(&paused);
            // Its partitions may not outlive the producer.
            drop(paused);
        };
        tokio::task::spawn_blocking(resume).await.ok();
    }

    /// Sends nothing more, and gives up every message that is not confirmed. Blocks.
    pub(super) fn end(&self) {
        self.pause();
        self.purge();
    }

    /// Gives up every message that is not confirmed. Blocks.
    fn purge(&self) {
        if let Some(producer) = &self.0 {
            producer.purge(PurgeConfig::default().queue().inflight());
        }
    }

    /// Stops sending, and returns the partitions that wait. Blocks.
    fn pause(&self) -> TopicPartitionList {
        let mut partitions = TopicPartitionList::new();
        if let Some(producer) = &self.0 {
            for (topic, count) in producer.context().0.written().partitions() {
                partitions.add_partition_range(topic, 0, count - 1);
            }
            pause::pause(producer.client(), &partitions);
        }
        partitions
    }

    fn resume(&self, paused: &TopicPartitionList) {
        if let Some(producer) = &self.0 {
            pause::resume(producer.client(), paused);
        }
    }

    /// Asks the brokers for a topic; returns the number of its partitions. Blocks.
    pub(super) fn look_up(&self, topic: &str, timeout: Duration) -> Result<usize, PublishError> {
        let Some(producer) = &self.0 else { return Err(unavailable("the producer has ended")) };
        let metadata =
            producer.client().fetch_metadata(Some(topic), timeout).map_err(|error| not_reached(producer, &error))?;
        producer.context().0.answered(producer.client().fetch_cluster_id(Duration::ZERO).as_deref());
        let topic = metadata.topics().iter().find(|it| it.name() == topic);
        match (topic.and_then(MetadataTopic::error), topic.map_or(0, |it| it.partitions().len())) {
            (Some(code), _) => Err(outcome::refused(code.into())),
            (None, 0) => {
                let detail = "no broker knows a partition of the topic yet".to_owned();
                Err(PublishError::Unroutable { reason: "unroutable", detail })
            }
            (None, partitions) => Ok(partitions),
        }
    }

    /// Checks that a broker answers, by asking for this topic or, without one, for all. Blocks.
    pub(super) fn ping(&self, topic: Option<&str>, timeout: Duration) -> Result<(), PublishError> {
        let Some(producer) = &self.0 else { return Err(unavailable("the producer has ended")) };
        producer.client().fetch_metadata(topic, timeout).map_err(|error| not_reached(producer, &error))?;
        Ok(())
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        end(self.0.take());
    }
}

/// Ends a client of librdkafka on a thread of its own.
pub fn end(client: impl Send + 'static) {
    let mut ending = ENDING.lock();
    ending.retain(|thread| !thread.is_finished());
    ending.push(std::thread::spawn(move || drop(client)));
}

/// The threads on which clients end.
static ENDING: SyncMutex<Vec<JoinHandle<()>>> = SyncMutex::new(Vec::new());

/// Waits until the clients that were dropped have ended, but not for longer than this. Where the process ends before,
/// OpenSSL's state vanishes under their threads, and a good end becomes a crash. Blocks.
pub fn wait_until_ended(patience: Duration) {
    let until = Instant::now() + patience;
    while Instant::now() < until && ENDING.lock().iter().any(|thread| !thread.is_finished()) {
        std::thread::sleep(FULL);
    }
}

/// The limits of a batch that is being handed over.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallLimits {
    /// Void once an earlier batch has failed.
    pub(super) ticket: Ticket,
    pub(super) deadline: Instant,
}

impl CallLimits {
    /// Returns the time until which to wait for others.
    fn patience(self) -> Instant {
        let now = Instant::now();
        now + self.deadline.saturating_duration_since(now) / 4
    }
}

/// The reason why a message was not handed over.
enum Miss {
    /// It is rejected, its destination takes nothing, or an earlier message of its key is in flight.
    One(PublishError),
    /// Nothing can be handed over.
    All(PublishError),
}

/// The sink's knowledge of brokers and topics, and the producer.
pub(super) struct Entry {
    /// Makes the configuration, with the current secrets.
    configure: Arc<dyn Fn() -> ClientConfig + Send + Sync>,
    /// The configuration of the producer.
    config: ClientConfig,
    reports: Arc<Reports>,
    producer: Arc<Producer>,
    /// The time since which written partitions are noted.
    since: Instant,
    /// The time until which the brokers count as down, and the reason.
    down: Option<(Instant, PublishError)>,
}

impl Entry {
    pub(super) fn new(
        configure: impl Fn() -> ClientConfig + Send + Sync + 'static,
        reports: Arc<Reports>,
    ) -> KafkaResult<Self> {
        let config = configure();
        let producer = Arc::new(Producer::new(&config, &reports)?);
        Ok(Self { configure: Arc::new(configure), config, reports, producer, since: Instant::now(), down: None })
    }

    pub(super) fn producer(&self) -> Arc<Producer> {
        Arc::clone(&self.producer)
    }

    /// Hands the messages to librdkafka, and puts the outcomes of those that it did not take into `outcomes`. Waits for
    /// no report: a message behind one is turned away.
    pub(super) async fn hand_over(
        &mut self,
        messages: &[&Outgoing],
        open: &OpenBatch,
        outcomes: &mut [Option<Outcome>],
        limits: CallLimits,
    ) {
        let mut down = self.refresh(limits).await.err();
        for (index, (message, outcome)) in messages.iter().zip(outcomes).enumerate() {
            let offered = match &down {
                Some(error) => Err(Miss::All(error.clone())),
                None => self.offer(message, index, open, limits).await,
            };
            match offered {
                Ok(()) => {}
                Err(Miss::One(error)) => *outcome = Some(Err(error)),
                Err(Miss::All(error)) => {
                    // Neither the rest of this batch nor a later one may overtake this message.
                    open.fail();
                    *outcome = Some(Err(error.clone()));
                    down = Some(error);
                }
            }
        }
    }

    /// Hands a message over.
    async fn offer(
        &mut self,
        message: &Outgoing,
        index: usize,
        open: &OpenBatch,
        limits: CallLimits,
    ) -> Result<(), Miss> {
        let topic = message.destination.target.as_str();
        let opaque = open.opaque(index);
        loop {
            if let Some(error) = open.refusal(topic, limits.ticket) {
                return Err(Miss::One(error));
            }
            let admission = self.reports.written().admit(topic, message.key_hash, opaque);
            match admission {
                PartitionEntry::Go => {
                    let sent = self.send(message, opaque, limits).await;
                    if let Err(miss) = &sent {
                        self.reports.done(topic, message.key_hash, opaque, Report::None);
                        if let Miss::One(error @ PublishError::Unroutable { .. }) = miss {
                            open.refuse(topic, error);
                        }
                    }
                    return sent;
                }
                PartitionEntry::Behind => {
                    let error = turned_away("an earlier message of its key is not confirmed");
                    open.refuse(topic, &error);
                    return Err(Miss::One(error));
                }
                PartitionEntry::Ask => {
                    check_topic(topic).map_err(Miss::One)?;
                    match self.ask(topic, limits.deadline).await {
                        Err(error @ PublishError::Unroutable { .. }) => {
                            open.refuse(topic, &error);
                            return Err(Miss::One(error));
                        }
                        Err(error @ PublishError::Rejected { .. }) => return Err(Miss::One(error)),
                        Err(error) => return Err(Miss::All(error)),
                        Ok(()) => {}
                    }
                }
            }
        }
    }

    /// Replaces a producer that ended with a fatal error, or one with old secrets that reaches no broker. Forgets
    /// partitions that were written long ago.
    async fn refresh(&mut self, limits: CallLimits) -> Result<(), PublishError> {
        let fresh = if self.down.is_some() || self.producer.is_broken() { Some(self.fresh().await?) } else { None };
        let old =
            self.down.is_some() && fresh.as_ref().is_some_and(|fresh| !properties::are_equal(fresh, &self.config));
        if !old && !self.producer.is_broken() && self.since.elapsed() < REMEMBERED {
            return Ok(());
        }
        // Messages in flight to written partitions are not noted, so the notes are cleared only without messages in
        // flight.
        let mut idle = timeout_at(limits.patience().into(), self.producer.idle()).await.is_ok();
        if let Some(fresh) = fresh.filter(|_| old || self.producer.is_broken()) {
            let why = if old { "has old secrets" } else { "ended with a fatal error" };
            if !idle && !self.reports.closed_during(self.producer().empty(), limits.deadline).await {
                return Err(unavailable(&format!("the Kafka producer {why}, and its messages are in flight")));
            }
            self.replace(why, fresh).await?;
            // The brokers have nothing of the new one.
            idle = true;
        }
        if idle {
            *self.reports.written() = Written::default();
        }
        self.since = Instant::now();
        Ok(())
    }

    /// Reads the files of secrets.
    async fn fresh(&self) -> Result<ClientConfig, PublishError> {
        let configure = Arc::clone(&self.configure);
        blocking(move || Ok(configure())).await
    }

    async fn replace(&mut self, why: &str, config: ClientConfig) -> Result<(), PublishError> {
        tracing::warn!("the Kafka producer {why}: starting a new one");
        let reports = Arc::clone(&self.reports);
        // Reads the files of TLS.
        let made = blocking(move || {
            let producer = Producer::new(&config, &reports).map_err(|error| unavailable(&error.to_string()))?;
            Ok((producer, config))
        });
        let (producer, config) = made.await?;
        (self.producer, self.config, self.down) = (Arc::new(producer), config, None);
        Ok(())
    }

    /// Returns the producer to ask whether a broker answers: a new one, if secrets have changed and nothing is in
    /// flight.
    pub(super) async fn renewed(&mut self) -> Result<Arc<Producer>, PublishError> {
        let fresh = self.fresh().await?;
        if self.producer.in_flight() == 0 && !properties::are_equal(&fresh, &self.config) {
            self.replace("has old secrets", fresh).await?;
            *self.reports.written() = Written::default();
        }
        Ok(self.producer())
    }

    /// Asks whether a topic exists, and notes the answer.
    async fn ask(&mut self, topic: &str, deadline: Instant) -> Result<(), PublishError> {
        if let Some((until, error)) = &self.down
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        self.down = None;
        let timeout = deadline.saturating_duration_since(Instant::now()).min(LOOKUP);
        let producer = self.producer();
        let name = topic.to_owned();
        let doubts = self.reports.written().doubts();
        let answer = blocking(move || producer.look_up(&name, timeout)).await;
        match &answer {
            Ok(partitions) => self.reports.written().found(topic, *partitions, doubts),
            Err(PublishError::Rejected { .. } | PublishError::Unroutable { .. }) => {
                self.reports.written().missing(topic);
            }
            Err(error) => self.down = Some((Instant::now() + PAUSE, error.clone())),
        }
        answer.map(drop)
    }

    /// Hands over one message. Waits while librdkafka's queue is full, so that the order is kept.
    async fn send(&self, message: &Outgoing, opaque: usize, limits: CallLimits) -> Result<(), Miss> {
        loop {
            match self.reports.fence.pass(limits.ticket, || self.producer.send(message, opaque)) {
                Some(Ok(())) => return Ok(()),
                Some(Err(Code::QueueFull)) if Instant::now() + FULL < limits.deadline => sleep(FULL).await,
                Some(Err(code)) => match outcome::refused(code) {
                    error @ PublishError::Unavailable(_) => return Err(Miss::All(error)),
                    error => return Err(Miss::One(error)),
                },
                None => return Err(Miss::All(turned_away("an earlier message failed"))),
            }
        }
    }
}

/// Runs blocking work off the async threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PublishError> + Send + 'static,
) -> Result<T, PublishError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(unavailable(&error.to_string())))
}

/// Explains a question without an answer. librdkafka's error is only a time-out; its last report on a connection is the
/// cause.
fn not_reached(producer: &ThreadedProducer<ReportContext>, error: &KafkaError) -> PublishError {
    if let Some(why) = producer.context().0.throttling() {
        return unavailable(&why);
    }
    match (error.rdkafka_error_code(), producer.context().0.trouble()) {
        (Some(_), Some(trouble)) => unavailable(&format!("no broker answers: {}", explain(Trouble::Kafka(&trouble)))),
        (Some(code), None) => unavailable(&format!("no broker answers: {code}")),
        (None, _) => PublishError::Rejected { reason: "invalid", detail: "not a name for a Kafka topic".to_owned() },
    }
}

pub(super) fn unavailable(text: &str) -> PublishError {
    PublishError::Unavailable(text.to_owned())
}
