//! Events of librdkafka: partitions that are assigned and revoked, and its log.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rdkafka::{
    ClientContext, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, ConsumerContext, Rebalance},
    error::KafkaError,
    types::RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN,
};
use tokio::sync::mpsc::UnboundedSender;

use crate::{ConsumerError, lines};

/// A topic and a partition of it.
pub(super) type Place = (String, i32);

/// A change of the partitions of this member, or its end.
#[derive(Debug)]
pub(super) enum GroupEvent {
    Assigned(Vec<Place>),
    Revoked(Vec<Place>),
    /// A callback has panicked.
    Panicked,
}

/// Passes rebalances on. They happen while messages are received, so each is in the channel before a message that
/// follows it.
pub(super) struct GroupContext {
    pub(super) events: UnboundedSender<GroupEvent>,
    pub(super) consumer: String,
}

impl ConsumerContext for GroupContext {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(list) = rebalance {
            self.tell(GroupEvent::Revoked(places(list)));
        }
    }

    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(list) = rebalance {
            self.tell(GroupEvent::Assigned(places(list)));
        }
    }
}

impl GroupContext {
    fn tell(&self, event: GroupEvent) {
        self.caught(|| {
            let consumer = self.consumer.as_str();
            match &event {
                GroupEvent::Assigned(partitions) => tracing::info!(consumer, ?partitions, "consumes from Kafka"),
                GroupEvent::Revoked(partitions) => {
                    tracing::info!(consumer, ?partitions, "no longer consumes from Kafka");
                }
                GroupEvent::Panicked => {}
            }
        });
        // After the end of the loop an event means nothing.
        self.events.send(event).ok();
    }

    /// A panic, as of a log line on a closed pipe, ends the loop. It must not pass through the client: without the rest
    /// of a rebalance a consumer never leaves its group.
    fn caught(&self, callback: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(callback)).is_err() {
            self.events.send(GroupEvent::Panicked).ok();
        }
    }
}

impl ClientContext for GroupContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.caught(|| log(&self.consumer, level, facility, message));
    }

    /// All errors of the consumer come here first.
    fn error(&self, error: KafkaError, reason: &str) {
        self.caught(|| trouble(&self.consumer, &error, reason));
    }
}

/// The context of clients that only log, for the consumer with this name.
pub(super) struct Quiet(pub(super) String);

impl ClientContext for Quiet {
    /// A panic would end the thread that reads the client's reports.
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        catch_unwind(|| log(&self.0, level, facility, message)).ok();
    }

    fn error(&self, error: KafkaError, reason: &str) {
        catch_unwind(AssertUnwindSafe(|| trouble(&self.0, &error, reason))).ok();
    }
}

fn trouble(consumer: &str, error: &KafkaError, reason: &str) {
    let code = error.rdkafka_error_code().map(|code| format!("{code:?}")).unwrap_or_default();
    if lines::shown(consumer, &code) {
        tracing::warn!(consumer, code, reason, "Kafka reports an error");
    }
}

fn log(consumer: &str, level: RDKafkaLogLevel, facility: &str, message: &str) {
    let is_shown = || lines::shown(consumer, facility);
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
            if is_shown() {
                tracing::warn!(consumer, facility, "librdkafka: {message}");
            }
        }
        RDKafkaLogLevel::Warning if is_shown() => tracing::info!(consumer, facility, "librdkafka: {message}"),
        RDKafkaLogLevel::Warning => {}
        _ => tracing::debug!(consumer, facility, "librdkafka: {message}"),
    }
}

fn places(list: &TopicPartitionList) -> Vec<Place> {
    list.elements().iter().map(|it| (it.topic().to_owned(), it.partition())).collect()
}

/// A list of one partition.
pub(super) fn only(place: &Place) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(1);
    list.add_partition(&place.0, place.1);
    list
}

/// The problem of the configuration, without any of its values.
pub(super) fn client_error(error: KafkaError) -> ConsumerError {
    ConsumerError::Client(match error {
        KafkaError::ClientConfig(RD_KAFKA_CONF_UNKNOWN, _, name, _) => {
            format!("librdkafka has no property `{name}`").into()
        }
        KafkaError::ClientConfig(_, _, name, _) => format!("librdkafka refuses the value of `{name}`").into(),
        other => other.into(),
    })
}
