//! The topics of a Kafka sink: their leaders, replicas and limits.

use std::{cmp::Ordering, time::Duration};

use outbox_relay::sink::kafka::{LARGEST, client, end};
use rdkafka::{
    admin::{AdminClient, AdminOptions, ResourceSpecifier},
    client::DefaultClientContext,
    config::FromClientConfig as _,
    error::RDKafkaErrorCode as Code,
    metadata::{Metadata, MetadataTopic},
};

use super::{DEADLINE, Finding, RoutedDestinations, WAITS};
use crate::config::KafkaConfig;

/// Looks at the topics.
pub(super) async fn examine(name: &str, config: &KafkaConfig, destinations: &RoutedDestinations) -> Vec<Finding> {
    let not_checked = |why: &str| vec![Finding::note("not_checked", format!("The topics of the sink {name}: {why}."))];
    let admin = match AdminClient::<DefaultClientContext>::from_config(&client(name, config)) {
        Ok(admin) => admin,
        Err(error) => return not_checked(&error.to_string()),
    };
    // Blocks.
    let asked = tokio::task::spawn_blocking(move || {
        let metadata = admin.inner().fetch_metadata(None, DEADLINE);
        (admin, metadata)
    });
    let (admin, metadata) = match asked.await {
        Ok((admin, Ok(metadata))) => (admin, metadata),
        Ok((admin, Err(error))) => {
            end(admin);
            return not_checked(&error.to_string());
        }
        Err(error) => return not_checked(&error.to_string()),
    };
    let mut findings = Vec::new();
    for (topic, _) in destinations {
        let shape = TopicShape::of(&metadata, topic);
        let settings = match shape.partitions {
            0 => Ok(TopicSettings::default()),
            _ => settings(&admin, topic).await,
        };
        match settings {
            Ok(settings) => findings.extend(judge(name, config, topic, shape, settings)),
            Err(code) => findings.extend(not_checked(&format!("the settings of {topic} cannot be read ({code})"))),
        }
    }
    end(admin);
    findings
}

/// The partitions of a topic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct TopicShape {
    brokers: usize,
    partitions: usize,
    leaderless: usize,
    /// The smallest number of replicas of a partition.
    replicas: usize,
}

impl TopicShape {
    fn of(metadata: &Metadata, topic: &str) -> Self {
        let found = metadata.topics().iter().find(|it| it.name() == topic && it.error().is_none());
        let partitions = found.map_or(&[][..], MetadataTopic::partitions);
        Self {
            brokers: metadata.brokers().len(),
            partitions: partitions.len(),
            leaderless: partitions.iter().filter(|partition| partition.leader() < 0).count(),
            replicas: partitions.iter().map(|partition| partition.replicas().len()).min().unwrap_or(0),
        }
    }
}

/// The settings of a topic; `None` where the broker does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct TopicSettings {
    in_sync: Option<usize>,
    bytes: Option<u64>,
}

async fn settings(admin: &AdminClient<DefaultClientContext>, topic: &str) -> Result<TopicSettings, Code> {
    let options = AdminOptions::new().request_timeout(Some(DEADLINE)).operation_timeout(Some(Duration::from_secs(5)));
    let described = admin.describe_configs(&[ResourceSpecifier::Topic(topic)], &options).await;
    let described = described.map_err(|error| error.rdkafka_error_code().unwrap_or(Code::Unknown))?;
    let described = described.into_iter().next().unwrap_or(Err(Code::Unknown))?;
    let value = |name: &str| described.get(name).and_then(|entry| entry.value.clone());
    Ok(TopicSettings {
        in_sync: value("min.insync.replicas").and_then(|value| value.parse().ok()),
        bytes: value("max.message.bytes").and_then(|value| value.parse().ok()),
    })
}

fn judge(name: &str, config: &KafkaConfig, topic: &str, shape: TopicShape, settings: TopicSettings) -> Vec<Finding> {
    let mut findings = Vec::new();
    let brokers = &config.brokers;
    let the_topic = format!("The topic {topic} of the sink {name}");
    if shape.partitions == 0 {
        let replicas = shape.brokers.clamp(1, 3);
        let problem = Finding::problem("topic_missing", format!("{the_topic} does not exist, or may not be seen."))
            .matters(WAITS);
        return vec![problem.fix("Create it (with --command-config, if the brokers ask for a login), or allow the relay \
                                 to describe and write it.").shell(format!(
            "kafka-topics.sh --bootstrap-server {brokers} --create --topic {topic} --partitions 6 --replication-factor \
             {replicas}"
        ))];
    }
    let alter = |setting: String| {
        format!("kafka-configs.sh --bootstrap-server {brokers} --alter --topic {topic} --add-config {setting}")
    };
    if shape.leaderless > 0 {
        let evidence = format!("{} of {} partitions have no leader: {the_topic}.", shape.leaderless, shape.partitions);
        let problem = Finding::problem("no_leader", evidence).matters("Keys of these partitions wait.");
        findings.push(problem.fix("Start the brokers that hold them: kafka-topics.sh --describe names them."));
    }
    let in_sync = settings.in_sync.unwrap_or(1);
    if in_sync > shape.replicas {
        let evidence = format!("{the_topic} has min.insync.replicas = {in_sync}, and {} replicas.", shape.replicas);
        let problem = Finding::problem("too_few_replicas", evidence).matters("It takes no message.");
        findings.push(
            problem
                .fix("Add replicas, or lower the setting.")
                .shell(alter(format!("min.insync.replicas={}", shape.replicas))),
        );
    } else if shape.replicas == 1 {
        let risk = Finding::risk("one_replica", format!("{the_topic} has one replica."))
            .matters("The loss of one broker's disk loses messages that are marked as sent.");
        findings.push(risk.fix("Give it three replicas and min.insync.replicas = 2: kafka-reassign-partitions.sh."));
    } else if in_sync == 1 {
        let risk = Finding::risk("one_in_sync_replica", format!("{the_topic} has min.insync.replicas = 1."))
            .matters("A broker that is alone confirms messages, and its loss loses them.");
        findings.push(risk.fix("Demand two.").shell(alter("min.insync.replicas=2".to_owned())));
    }
    let largest = config.properties.get("message.max.bytes").and_then(|value| value.text().trim().parse().ok());
    let largest: u64 = largest.unwrap_or(LARGEST);
    findings.extend(settings.bytes.and_then(|bytes| sizes(&the_topic, bytes, largest, alter)));
    findings
}

/// Compares the limits of a topic and of the sink's producer.
fn sizes(the_topic: &str, bytes: u64, largest: u64, alter: impl Fn(String) -> String) -> Option<Finding> {
    let evidence = format!(
        "{the_topic} takes {bytes} bytes (max.message.bytes), and the relay sends up to {largest} (message.max.bytes)."
    );
    let large = "A message between the two is dead at once.";
    match bytes.cmp(&largest) {
        Ordering::Less => {
            let risk = Finding::risk("small_messages", evidence).matters(large);
            Some(risk.fix("Raise the topic's limit.").shell(alter(format!("max.message.bytes={largest}"))))
        }
        Ordering::Equal => None,
        Ordering::Greater => Some(Finding::note("large_messages", evidence).matters(large).fix(format!(
            "If services send such messages, set \"message.max.bytes\" = {bytes} in the sink's properties."
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shape_has_its_finding() {
        let config = KafkaConfig::new("k:9092");
        let sound = TopicShape { brokers: 3, partitions: 6, leaderless: 0, replicas: 3 };
        let set = TopicSettings { in_sync: Some(2), bytes: Some(LARGEST) };
        let found = |shape, settings| {
            judge("k", &config, "orders", shape, settings).iter().map(|it| it.finding).collect::<Vec<_>>()
        };
        assert_eq!(found(sound, set), [""; 0]);
        assert_eq!(found(TopicShape { partitions: 0, ..sound }, set), ["topic_missing"]);
        assert_eq!(found(TopicShape { leaderless: 2, ..sound }, set), ["no_leader"]);
        assert_eq!(found(TopicShape { replicas: 1, ..sound }, set), ["too_few_replicas"]);
        assert_eq!(
            found(TopicShape { replicas: 1, ..sound }, TopicSettings { in_sync: Some(1), ..set }),
            ["one_replica"]
        );
        assert_eq!(found(sound, TopicSettings { in_sync: Some(1), ..set }), ["one_in_sync_replica"]);
        assert_eq!(found(sound, TopicSettings { bytes: Some(999_999), ..set }), ["small_messages"]);
        assert_eq!(found(sound, TopicSettings { bytes: Some(5_000_000), ..set }), ["large_messages"]);
    }
}
