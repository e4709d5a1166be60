//! Events of librdkafka: partitions that are assigned and revoked, and its log.

use rdkafka::{
    ClientContext, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, ConsumerContext, Rebalance},
    error::KafkaError,
    types::RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN,
};
use tokio::sync::mpsc::UnboundedSender;

use crate::ConsumerError;

/// A topic and a partition of it.
pub(super) type Place = (String, i32);

/// A change of the partitions of this member.
#[derive(Debug)]
pub(super) enum GroupEvent {
    Assigned(Vec<Place>),
    Revoked(Vec<Place>),
}

/// Passes rebalances on. They happen while messages are received, so each is in the channel before a message that follows it.
pub(super) struct GroupContext(pub(super) UnboundedSender<GroupEvent>);

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
        tracing::info!(?event, "partitions");
        if self.0.send(event).is_err() {
            tracing::debug!("a rebalance after the end of the loop");
        }
    }
}

impl ClientContext for GroupContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(%error, reason, "librdkafka");
    }
}

/// The context of clients that only log.
pub(super) struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }
}

fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
            tracing::warn!(facility, "librdkafka: {message}");
        }
        RDKafkaLogLevel::Warning => tracing::info!(facility, "librdkafka: {message}"),
        _ => tracing::debug!(facility, "librdkafka: {message}"),
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
