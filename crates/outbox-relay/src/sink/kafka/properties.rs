//! The configuration of librdkafka.

use std::collections::BTreeMap;

use rdkafka::{ClientConfig, config::RDKafkaLogLevel, error::KafkaError, types::RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN};

use super::throttling::FIGURES;
use crate::settings;

/// The longest wait for further messages: well below the shortest sensible deadline. librdkafka compares it with its
/// own time-out only, which is off.
const MAX_LINGER_MS: f64 = 1000.0;

/// The largest message in bytes, as librdkafka counts it before compression: Kafka's own default for a batch. It has
/// room for the 1,000,000 bytes that `enqueue` takes by default, in each envelope.
pub const LARGEST: u64 = 1_048_588;

/// Properties that the sink sets itself, each with the reason.
const FIXED: [(&str, &str); 14] = [
    ("plugin.library.paths", "it loads code into the relay"),
    ("acks", "a message counts as sent only when all in-sync replicas have it"),
    ("request.required.acks", "a message counts as sent only when all in-sync replicas have it"),
    ("enable.idempotence", "without it a retried request reorders a key"),
    ("message.timeout.ms", "it would give messages up one by one; change relay.publish_deadline instead"),
    ("delivery.timeout.ms", "it would give messages up one by one; change relay.publish_deadline instead"),
    ("retries", "the idempotent producer needs its retries"),
    ("message.send.max.retries", "the idempotent producer needs its retries"),
    ("queuing.strategy", "any other than first in, first out reorders a key"),
    ("delivery.report.only.error", "without reports of success no message would ever count as sent"),
    ("transactional.id", "the relay does not use transactions; consumers use the inbox instead"),
    ("bootstrap.servers", "use the key `brokers` of the sink"),
    ("metadata.broker.list", "use the key `brokers` of the sink"),
    ("log.queue", "the relay receives librdkafka's log itself"),
];

/// Lists the problems of properties of librdkafka, one line each; empty if they may be used.
///
/// Properties that would weaken delivery or order are refused. Names unknown to librdkafka are found when the sink is
/// made.
#[must_use]
pub fn check_properties(properties: &BTreeMap<String, settings::Secret>) -> Vec<String> {
    let fixed = FIXED.iter().filter(|(name, _)| properties.contains_key(*name));
    let mut problems: Vec<_> = fixed.map(|(name, why)| format!("remove `{name}`: {why}")).collect();
    for name in ["max.in.flight", "max.in.flight.requests.per.connection"] {
        if properties.get(name).is_some_and(|value| !matches!(value.text().trim(), "1" | "2" | "3" | "4" | "5")) {
            problems.push(format!("set `{name}` to 1 to 5: above 5 a retried request reorders a key"));
        }
    }
    for name in ["linger.ms", "queue.buffering.max.ms"] {
        let millis = properties.get(name).and_then(|value| value.text().trim().parse::<f64>().ok());
        if millis.is_some_and(|millis| millis > MAX_LINGER_MS) {
            problems.push(format!(
                "set `{name}` to at most {MAX_LINGER_MS}: the relay gives a message up at relay.publish_deadline"
            ));
        }
    }
    if properties.get("partitioner").is_some_and(|value| value.text().trim() == "random") {
        problems
            .push("set `partitioner` to one that hashes the key: `random` spreads a key over partitions".to_owned());
    }
    problems
}

/// Returns the configuration of the producer.
#[must_use]
pub fn client(name: &str, config: &settings::KafkaConfig) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("client.id", format!("outbox-relay-{name}"));
    client.set("partitioner", "murmur2_random").set("linger.ms", "0").set("compression.type", "none");
    client.set("allow.auto.create.topics", "false").set("socket.nagle.disable", "true");
    // The relay limits the messages in flight; a full queue would only cause waiting.
    client.set("queue.buffering.max.messages", "2000000").set("queue.buffering.max.kbytes", "2097151");
    client.set("message.max.bytes", LARGEST.to_string());
    // New partitions are used after this time.
    client.set("topic.metadata.refresh.interval.ms", "5000").set("metadata.max.age.ms", "900000");
    // Shows whether the brokers throttle this client.
    client.set("statistics.interval.ms", FIGURES.as_millis().to_string());
    for (name, value) in &config.properties {
        client.set(name, &*value.current());
    }
    client.set("bootstrap.servers", &config.brokers).set("message.timeout.ms", "0");
    client.set("acks", "all").set("enable.idempotence", "true");
    client.set_log_level(RDKafkaLogLevel::Info);
    client
}

/// Returns the configuration of a consumer that assigns partitions to itself.
pub(super) fn consumer(config: &settings::KafkaConfig) -> ClientConfig {
    let mut client = ClientConfig::new();
    for (name, value) in &config.properties {
        client.set(name, &*value.current());
    }
    client.set("client.id", "outbox-relay-canary").set("bootstrap.servers", &config.brokers);
    // librdkafka assigns no partition without the name of a group. It looks for the coordinator, and goes on without
    // one.
    client.set("group.id", "outbox-relay-canary").set("enable.auto.commit", "false");
    // It would warn of each property that only a producer has.
    client.set_log_level(RDKafkaLogLevel::Error);
    client
}

/// Whether two configurations of one sink have the same values. (`config_map` would hide secrets.)
pub(super) fn are_equal(one: &ClientConfig, other: &ClientConfig) -> bool {
    one.config_map().keys().all(|name| one.get(name) == other.get(name))
}

/// Returns the problem of the configuration, without any of its values.
pub(super) fn describe(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(RD_KAFKA_CONF_UNKNOWN, _, name, _) => format!("librdkafka has no property `{name}`"),
        KafkaError::ClientConfig(_, _, name, _) => format!("librdkafka refuses the value of `{name}`"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::check_properties;
    use crate::settings::Secret;

    fn problems(name: &str, value: &str) -> usize {
        check_properties(&BTreeMap::from([(name.to_owned(), Secret::new(value))])).len()
    }

    #[test]
    fn what_weakens_the_guarantees_is_refused() {
        for (name, value) in [
            ("acks", "1"),
            ("enable.idempotence", "false"),
            ("message.timeout.ms", "300000"),
            ("max.in.flight", "6"),
            ("partitioner", "random"),
            ("linger.ms", "1000.5"),
            ("delivery.report.only.error", "true"),
        ] {
            assert_eq!(problems(name, value), 1, "{name}");
        }
    }

    #[test]
    fn the_rest_passes() {
        for (name, value) in
            [("linger.ms", "5"), ("compression.type", "lz4"), ("max.in.flight", "1"), ("partitioner", "murmur2")]
        {
            assert_eq!(problems(name, value), 0, "{name}");
        }
    }
}
