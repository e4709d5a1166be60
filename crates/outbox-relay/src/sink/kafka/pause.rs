//! A stop of sending, for the time in which messages are given up.
//!
//! librdkafka gives messages up broker by broker. If the leader of a partition moves meanwhile, the first ones may be
//! given up at the old leader, and later ones not at the new one. librdkafka begins a new epoch and sends those, ahead
//! of those that were given up. (With a leader that moved every 8 ms and a full processor: in 11 of 60 trials, in none
//! with a stop.)

use rdkafka::{ClientContext, TopicPartitionList, bindings, client::Client};

/// Stops sending to these partitions: what is not on the wire waits. Blocks.
#[expect(unsafe_code, reason = "rdkafka pauses consumers only; librdkafka pauses producers as well")]
pub(super) fn pause<C: ClientContext>(client: &Client<C>, partitions: &TopicPartitionList) {
    // SAFETY: both pointers live as long as their borrowed owners, and librdkafka keeps neither. It notes its own
    // partition in each element of the list, which the caller drops before the client.
    unsafe { bindings::rd_kafka_pause_partitions(client.native_ptr(), partitions.ptr()) };
}

/// Sends to these partitions again. Blocks.
#[expect(unsafe_code, reason = "rdkafka resumes consumers only; librdkafka resumes producers as well")]
pub(super) fn resume<C: ClientContext>(client: &Client<C>, partitions: &TopicPartitionList) {
    // SAFETY: as for `pause`.
    unsafe { bindings::rd_kafka_resume_partitions(client.native_ptr(), partitions.ptr()) };
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rdkafka::{
        ClientConfig, TopicPartitionList,
        mocking::MockCluster,
        producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer as _},
    };

    use super::{pause, resume};

    #[test]
    fn paused_partitions_get_nothing_until_they_are_resumed() {
        let cluster = MockCluster::<DefaultProducerContext>::new(1).unwrap();
        let producer: BaseProducer =
            ClientConfig::new().set("bootstrap.servers", cluster.bootstrap_servers()).create().unwrap();
        let send = |topic| producer.send(BaseRecord::<(), str>::to(topic).payload("1")).map_err(|(error, _)| error);
        let wait_for = |left| {
            while producer.in_flight_count() > left {
                producer.poll(Duration::from_millis(1));
            }
        };
        for topic in ["paused", "other"] {
            cluster.create_topic(topic, 1, 1).unwrap();
            send(topic).unwrap();
        }
        wait_for(0);
        let mut partitions = TopicPartitionList::new();
        partitions.add_partition("paused", 0);
        pause(producer.client(), &partitions);
        for topic in ["paused", "other", "other"] {
            send(topic).unwrap();
        }
        wait_for(1);
        resume(producer.client(), &partitions);
        wait_for(0);
    }
}
