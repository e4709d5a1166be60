//! The partitions in which the brokers keep the order of this producer's messages, and those in which they do not yet.
//!
//! A broker checks the sequence numbers of a producer in the partitions that it has written for that producer. There
//! each request must follow the one before; elsewhere any request is a beginning. Suppose that the first request is
//! refused for a moment, because the partition is new or its leader moves. If the second one, already in flight, is
//! taken, the first one is never written: its retry comes too late. librdkafka relies on brokers that write in order,
//! and reports its messages as sent without an offset. (KAFKA-15591; from 4.5 on a broker refuses such a second request
//! in partitions that were never written to.)
//!
//! Such a report is no confirmation (see [`super::reports`]). Until a partition is written to, a key has only one
//! message in flight, so that nothing overtakes a message that is sent again.

use std::collections::{HashMap, HashSet};

/// The knowledge of the topics that are published to.
#[derive(Debug, Default)]
pub(super) struct Written {
    topics: HashMap<String, Topic>,
    /// Keys with a message in flight to a partition that may be unwritten, each with the number that the message
    /// carries.
    on_the_way: HashMap<u64, usize>,
    doubts: u64,
}

#[derive(Debug, Default)]
struct Topic {
    /// Whether the brokers have it.
    exists: bool,
    partitions: usize,
    written: HashSet<i32>,
    /// While some partitions are unwritten: the keys that belong to the written ones.
    proven: HashSet<u64>,
}

/// Whether a message may be handed over.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PartitionEntry {
    /// Yes.
    Go,
    /// Not while an earlier message of its key is in flight.
    Behind,
    /// The brokers must be asked for its topic.
    Ask,
}

impl Written {
    /// Returns the number of doubts so far.
    pub(super) fn doubts(&self) -> u64 {
        self.doubts
    }

    /// Notes that the brokers have a topic with this number of partitions. They answered at this number of doubts: a
    /// later doubt remains.
    pub(super) fn found(&mut self, topic: &str, partitions: usize, doubts: u64) {
        let known = self.topics.entry(topic.to_owned()).or_default();
        if known.partitions != partitions {
            *known = Topic { partitions, ..Topic::default() };
        }
        known.exists = doubts == self.doubts;
    }

    /// Notes that the brokers do not have a topic, or no longer have it.
    pub(super) fn missing(&mut self, topic: &str) {
        self.topics.remove(topic);
    }

    /// Forgets the topics: another cluster has others. Messages in flight stay noted.
    pub(super) fn forget(&mut self) {
        self.doubts += 1;
        self.topics.clear();
    }

    /// Notes that the brokers must be asked for each topic again. Written partitions stay noted.
    pub(super) fn doubt(&mut self) {
        self.doubts += 1;
        self.topics.values_mut().for_each(|topic| topic.exists = false);
    }

    /// Decides on a message, and notes it as in flight with the number that it carries. A hash of 0 has no order.
    pub(super) fn admit(&mut self, topic: &str, key_hash: u64, opaque: usize) -> PartitionEntry {
        let Some(topic) = self.topics.get(topic).filter(|topic| topic.exists) else { return PartitionEntry::Ask };
        // Also if other messages were written since: because of them this key's message may come too late.
        if self.on_the_way.contains_key(&key_hash) {
            return PartitionEntry::Behind;
        }
        if key_hash != 0 && !topic.keeps_order(key_hash) {
            self.on_the_way.insert(key_hash, opaque);
        }
        PartitionEntry::Go
    }

    /// Whether messages of a key may be in flight together.
    pub(super) fn keeps_order(&self, topic: &str, key_hash: u64) -> bool {
        let topic = self.topics.get(topic);
        !self.on_the_way.contains_key(&key_hash) && topic.is_some_and(|topic| topic.keeps_order(key_hash))
    }

    /// Notes that a message is no longer in flight, with the partition where it was written, if it was.
    pub(super) fn reported(&mut self, topic: &str, key_hash: u64, opaque: usize, partition: Option<i32>) {
        if let (Some(topic), Some(partition)) = (self.topics.get_mut(topic), partition) {
            topic.confirmed(partition, key_hash);
        }
        if self.on_the_way.get(&key_hash) == Some(&opaque) {
            self.on_the_way.remove(&key_hash);
        }
    }

    /// Forgets the messages of this batch that have no report yet: their caller gives them up.
    pub(super) fn returned(&mut self, batch: impl Fn(usize) -> bool) {
        self.on_the_way.retain(|_, opaque| !batch(*opaque));
    }

    /// Returns the known topics, each with its number of partitions.
    pub(super) fn partitions(&self) -> impl Iterator<Item = (&str, i32)> {
        self.topics.iter().map(|(name, topic)| (name.as_str(), i32::try_from(topic.partitions).unwrap_or(i32::MAX)))
    }

    /// Returns a topic that the brokers have or had.
    pub(super) fn any_topic(&self) -> Option<String> {
        self.topics.keys().next().cloned()
    }
}

impl Topic {
    fn confirmed(&mut self, partition: i32, key_hash: u64) {
        if usize::try_from(partition).is_ok_and(|it| it >= self.partitions) {
            // The topic has more partitions by now.
            self.exists = false;
            return;
        }
        if self.is_written() {
            return;
        }
        self.written.insert(partition);
        self.proven.insert(key_hash);
        if self.is_written() {
            self.proven = HashSet::new();
        }
    }

    fn keeps_order(&self, key_hash: u64) -> bool {
        self.is_written() || self.proven.contains(&key_hash)
    }

    fn is_written(&self) -> bool {
        self.written.len() >= self.partitions
    }
}

#[cfg(test)]
mod tests {
    use super::{
        PartitionEntry::{self, Ask, Behind, Go},
        Written,
    };

    fn written() -> Written {
        let mut written = Written::default();
        written.found("orders", 2, 0);
        written
    }

    /// Admits messages with these keys; the first one carries 1.
    fn admit<const N: usize>(written: &mut Written, keys: [u64; N]) -> [PartitionEntry; N] {
        let mut opaque = 0;
        keys.map(|key| {
            opaque += 1;
            written.admit("orders", key, opaque)
        })
    }

    #[test]
    fn a_key_has_one_message_on_the_way_until_one_is_confirmed() {
        let mut written = written();
        assert_eq!(admit(&mut written, [7, 7, 8, 7]), [Go, Behind, Go, Behind]);
        assert!(!written.keeps_order("orders", 7) && !written.keeps_order("unknown", 9));
        written.reported("orders", 7, 1, Some(0));
        assert!(written.keeps_order("orders", 7) && !written.keeps_order("orders", 8));
        assert_eq!(admit(&mut written, [7, 7, 8]), [Go, Go, Behind]);
    }

    #[test]
    fn after_a_failure_the_next_one_is_the_first() {
        let mut written = written();
        assert_eq!(admit(&mut written, [7, 8]), [Go, Go]);
        // The second report is of another message.
        for (key, opaque) in [(7, 1), (8, 9), (9, 2)] {
            written.reported("orders", key, opaque, None);
        }
        assert_eq!(admit(&mut written, [7, 7, 8]), [Go, Behind, Behind]);
        written.returned(|opaque| opaque == 2);
        assert_eq!(admit(&mut written, [7, 8]), [Behind, Go]);
    }

    #[test]
    fn nobody_waits_without_a_key_or_where_all_partitions_are_written_to() {
        let mut written = written();
        assert_eq!(admit(&mut written, [0, 0]), [Go, Go]);
        for key in [0, 9] {
            written.reported("orders", key, 1, Some(0));
        }
        assert_eq!(admit(&mut written, [7, 7]), [Go, Behind]);
        written.reported("orders", 6, 3, Some(1));
        assert_eq!(admit(&mut written, [8, 8, 7]), [Go, Go, Behind], "one of 7 is still on the way");
        written.reported("orders", 7, 1, None);
        assert_eq!(admit(&mut written, [7, 7]), [Go, Go]);
    }

    #[test]
    fn a_doubt_asks_again_and_takes_nothing_back() {
        let mut written = written();
        for partition in [0, 1] {
            written.reported("orders", 7, 1, Some(partition));
        }
        let before = written.doubts();
        written.doubt();
        written.found("orders", 2, before);
        assert_eq!(admit(&mut written, [8]), [Ask], "the answer is from before the doubt");
        written.found("orders", 2, written.doubts());
        assert_eq!(admit(&mut written, [8, 8]), [Go, Go]);
    }

    #[test]
    fn another_topic_of_the_name_begins_again_and_so_does_one_with_more_partitions() {
        let mut written = written();
        for partition in [0, 1] {
            written.reported("orders", 7, 1, Some(partition));
        }
        written.missing("orders");
        assert_eq!(admit(&mut written, [8]), [Ask]);
        written.found("orders", 2, 0);
        assert_eq!(admit(&mut written, [8, 8]), [Go, Behind]);
        written.reported("orders", 8, 1, Some(2));
        assert_eq!(admit(&mut written, [8]), [Ask]);
        written.found("orders", 2, 0);
        for partition in [0, 1, 2] {
            written.reported("orders", 8, 1, Some(partition));
        }
        assert_eq!(admit(&mut written, [8]), [Ask], "the third one was not written to");
    }
}
