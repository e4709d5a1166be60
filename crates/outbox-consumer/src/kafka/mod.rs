//! Consuming from Kafka.

mod client;
mod context;
mod dead;
mod group;
mod offsets;
mod queued;
mod topics;

mod wire;

use std::collections::BTreeMap;

use outbox_core::{Inbox, sqlx::MySqlPool, store::settle::losses::Losses};
use rdkafka::{ClientConfig, config::RDKafkaLogLevel};
use tokio::sync::Semaphore;

use crate::{
    ConsumerError, Handler, options::Options, process::Processor, purge::Purging, starts::Starts,
    unfinished::Unfinished,
};

/// Properties of librdkafka that the consumer sets itself, with the reasons.
const FIXED: [(&str, &str); 5] = [
    ("bootstrap.servers", "it is the first argument of `Consumer::new`"),
    ("group.id", "it is the consumer's name"),
    ("enable.auto.commit", "offsets are committed in the background, after their transactions"),
    ("enable.auto.offset.store", "an offset may be committed only after its transaction"),
    ("enable.partition.eof", "the end of a partition is no message"),
];

/// A member of a Kafka consumer group that applies each message once.
///
/// Every partition keeps the order of its keys; messages of different keys are worked on at the same time, up to
/// [`Consumer::concurrency`]. An offset is committed only when the transactions of all messages before it are
/// committed. A rebalance, a crash or a lost connection to Kafka make messages come again, and the inbox absorbs them.
///
/// ```no_run
/// # use outbox_consumer::{Delivery, Failure, Handler, kafka, stop_signal};
/// # use outbox_core::sqlx::{MySqlConnection, MySqlPool};
/// # struct Billing;
/// # impl Handler for Billing {
/// #     async fn handle(&self, _: &mut MySqlConnection, _: &Delivery) -> Result<(), Failure> { Ok(()) }
/// # }
/// # async fn consume(pool: MySqlPool) -> Result<(), outbox_consumer::ConsumerError> {
/// kafka::Consumer::new("127.0.0.1:9092", "billing", pool)?.topic("orders").run(Billing, stop_signal()).await?;
/// # Ok(()) }
/// ```
pub struct Consumer {
    brokers: String,
    properties: BTreeMap<String, String>,
    topics: Vec<String>,
    window: usize,
    dead_letter_topic: Option<String>,
    options: Options,
    inbox: Inbox,
    pool: MySqlPool,
}

impl Consumer {
    /// A consumer with this name (1 to 100 printable ASCII characters), which is also that of its group and of its
    /// inbox: all its processes share it. `brokers` is `host:port`, several separated by commas. An invalid name is an
    /// error ([`ConsumerError::Name`]); [`Consumer::run`] checks all else.
    ///
    /// The pool needs as many connections as [`Consumer::concurrency`], 8 by default, besides what the service uses
    /// itself.
    pub fn new(brokers: impl Into<String>, name: &str, pool: MySqlPool) -> Result<Self, ConsumerError> {
        Ok(Self {
            brokers: brokers.into(),
            properties: BTreeMap::new(),
            topics: Vec::new(),
            window: 256,
            dead_letter_topic: None,
            options: Options::default(),
            inbox: Inbox::new(name)?,
            pool,
        })
    }

    /// Consumes this topic; call it again for more.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topics.push(topic.into());
        self
    }

    /// Sets a property of librdkafka, for example `security.protocol`, `sasl.password` or `session.timeout.ms`. A new
    /// group, or one whose offsets have expired, starts at the oldest message; `auto.offset.reset=latest` skips those. A broker that does not reply for
    /// `socket.timeout.ms`, 10 s unless set, is left for the others. [`Consumer::run`] refuses properties that would
    /// lose messages.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(name.into(), value.into());
        self
    }

    /// Most messages of a partition that are received and not decided, 256 by default. A partition that reaches this
    /// number is paused until half of them are decided. Messages behind an earlier one of their key have room of their
    /// own, so that a key that waits does not pause the others: 15 times this number, as long as their payloads have no
    /// more than 16 MiB together.
    #[must_use]
    pub fn window(mut self, messages: usize) -> Self {
        self.window = messages.max(1);
        self
    }

    /// Sends dead messages to this topic, as they came and with the headers `x-dead-letter-reason`, `-error`,
    /// `-attempts`, `-consumer` and `-topic`, instead of keeping them in the table `inbox_dead`. The topic must exist.
    /// They are not marked as processed, so they may be sent back.
    #[must_use]
    pub fn dead_letter_topic(mut self, topic: impl Into<String>) -> Self {
        self.dead_letter_topic = Some(topic.into());
        self
    }

    crate::options::common_options!();

    /// Consumes until `stop` ends; then lets messages at work end, commits their offsets and leaves the group.
    ///
    /// Waits without end for brokers and databases that cannot be reached. An error: the configuration cannot be used,
    /// librdkafka has given up, or the consumer itself has panicked, for example at a log that is closed.
    pub async fn run<H: Handler>(mut self, handler: H, stop: impl Future<Output = ()>) -> Result<(), ConsumerError> {
        if self.topics.is_empty() {
            return Err(ConsumerError::NoTopic);
        }
        if let Some((name, why)) = FIXED.iter().find(|(name, _)| self.properties.contains_key(*name)) {
            return Err(ConsumerError::Client(format!("remove the property `{name}`: {why}").into()));
        }
        let dead = self.dead_letter_topic.as_deref().map(|topic| dead::DeadLetters::new(topic, &self));
        let dead = dead.transpose()?;
        topics::compare(&self);
        let config = self.config();
        let topics = self.topics;
        let window = self.window;
        let purging = Purging::new(&mut self.options, self.inbox.consumer(), &self.pool);
        let processor = Processor {
            at_work: Semaphore::new(self.options.concurrency),
            inbox: self.inbox,
            pool: self.pool,
            handler,
            options: self.options,
            can_requeue: false,
            broker_buries: dead.is_some(),
            delivery_limit: 0,
            starts: Starts::default(),
            unfinished: Unfinished::default(),
            losses: Losses::default(),
        };
        let group = group::Group::join(&config, &topics, window, processor, dead)?;
        purging.beside(group.run(stop)).await
    }

    /// The configuration of the client in the group.
    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("partition.assignment.strategy", "cooperative-sticky").set("auto.offset.reset", "earliest");
        config.set("auto.commit.interval.ms", "1000").set("queued.max.messages.kbytes", "16384");
        config.set("fetch.wait.max.ms", "100");
        // A reply must be here within `socket.timeout.ms`: on a path of 1 MB/s, too.
        config.set("fetch.max.bytes", "8388608");
        self.finish(&mut config);
        config.set("group.id", self.inbox.consumer());
        // Stored offsets are committed in the background and when a partition is given up.
        config.set("enable.auto.commit", "true").set("enable.auto.offset.store", "false");
        config
    }

    /// The settings of all clients: the brokers, and the service's own.
    fn finish(&self, config: &mut ClientConfig) {
        config.set("client.id", format!("outbox-consumer-{}", self.inbox.consumer()));
        // A frozen broker keeps its connections. librdkafka leaves it after this time without a reply, by default a
        // minute.
        config.set("socket.timeout.ms", "10000");
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        config.set("bootstrap.servers", &self.brokers);
        config.set_log_level(RDKafkaLogLevel::Info);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_broker_that_does_not_reply_is_left_after_ten_seconds_unless_the_service_says_otherwise() {
        let pool = MySqlPool::connect_lazy("mysql://nobody@127.0.0.1:1/none").unwrap();
        let consumer = Consumer::new("127.0.0.1:1", "billing", pool).unwrap();
        assert_eq!(consumer.config().get("socket.timeout.ms"), Some("10000"));
        let patient = consumer.property("socket.timeout.ms", "60000");
        assert_eq!(patient.config().get("socket.timeout.ms"), Some("60000"));
    }
}
