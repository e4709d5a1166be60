//! The topics: whether they exist, and whether Kafka keeps messages for longer than the inbox remembers them.

use std::{
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use outbox_core::check_window;
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier},
    config::FromClientConfigAndContext as _,
    consumer::{Consumer as _, StreamConsumer},
    error::{KafkaResult, RDKafkaErrorCode as Code},
    metadata::MetadataTopic,
};
use tokio::{sync::oneshot::channel, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    Consumer,
    client::Client,
    context::{GroupContext, Quiet},
};
use crate::{Metrics, Retry, lines};

const DEADLINE: Duration = Duration::from_secs(30);
/// The time that a broker has to say whether a topic exists.
const ASK: Duration = Duration::from_secs(10);
/// The waits between two looks at the topics while one is missing. The last is also the one while all exist.
const LOOK: Retry = Retry::new(Duration::from_secs(1), Duration::from_secs(30), u32::MAX);

type Member = StreamConsumer<GroupContext>;

/// Reports topics that do not exist again and again: librdkafka does so once.
pub(super) async fn watch(
    group: Weak<Member>,
    topics: Vec<String>,
    name: String,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let topics: Arc<[String]> = topics.into();
    let mut failures = 0;
    while let Some(member) = group.upgrade() {
        let missing = missing(member, Arc::clone(&topics)).await;
        for (topic, code) in &missing {
            metrics.broker_event(&name, "missing");
            if lines::shown(&name, topic) {
                tracing::warn!(consumer = name, topic, error = %code, "a topic does not exist, or may not be read: it \
                                                                       is not consumed");
            }
        }
        failures = if missing.is_empty() { 0 } else { failures + 1 };
        let wait = if missing.is_empty() { LOOK.max } else { LOOK.wait(failures) };
        if stop.run_until_cancelled(sleep(wait)).await.is_none() {
            return;
        }
    }
}

/// The topics that Kafka does not show to this member. Where it does not answer, no topic is missing.
async fn missing(member: Arc<Member>, topics: Arc<[String]>) -> Vec<(String, Code)> {
    let (sender, receiver) = channel();
    // Blocks. The runtime would wait for a thread of its own.
    thread::spawn(move || {
        let mut missing = Vec::new();
        for topic in topics.iter() {
            let Ok(metadata) = member.fetch_metadata(Some(topic), ASK) else { break };
            let code = metadata.topics().iter().find_map(MetadataTopic::error).map(Code::from);
            let code =
                code.filter(|code| matches!(code, Code::UnknownTopicOrPartition | Code::TopicAuthorizationFailed));
            missing.extend(code.map(|code| (topic.clone(), code)));
        }
        drop(member);
        sender.send(missing).ok();
    });
    receiver.await.unwrap_or_default()
}

/// Compares the topics' retention with the inbox's in the background; warns, and sets the metric.
pub(super) fn compare(consumer: &Consumer) {
    let mut config = ClientConfig::new();
    consumer.finish(&mut config);
    let topics = consumer.topics.clone();
    let kept = consumer.options.inbox_retention;
    let name = consumer.inbox.consumer().to_owned();
    let metrics = consumer.options.metrics.clone();
    tokio::spawn(async move {
        let longest = match longest(&config, &topics, &name).await {
            Ok(Some(longest)) => longest,
            Ok(None) => return,
            Err(error) => {
                tracing::info!(consumer = name, %error, "cannot see for how long the topics are kept");
                return;
            }
        };
        let checked = check_window(kept, longest);
        metrics.window_short.with_label_values(&[&name]).set(i64::from(checked.is_err()));
        match checked {
            Ok(()) => {}
            Err(_) if longest == Duration::MAX => tracing::warn!(
                consumer = name,
                "a topic is kept for ever: a message that is read again after the inbox has forgotten it is processed \
                 again"
            ),
            Err(error) => {
                tracing::warn!(consumer = name, %error, "the topics are kept for longer than the inbox remembers");
            }
        }
    });
}

/// How long a message can be read, in the topic that keeps it longest; `None` if Kafka shows it of no topic.
async fn longest(config: &ClientConfig, topics: &[String], consumer: &str) -> KafkaResult<Option<Duration>> {
    let admin: Client<AdminClient<Quiet>> =
        Client::new(AdminClient::from_config_and_context(config, Quiet(consumer.to_owned()))?);
    let topics: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
    let options = AdminOptions::new().request_timeout(Some(DEADLINE));
    let mut longest = None;
    for topic in admin.describe_configs(&topics, &options).await? {
        longest = longest.max(kept(&topic.map_err(rdkafka::error::KafkaError::AdminOp)?));
    }
    Ok(longest)
}

/// The retention of a topic: for ever if messages are not deleted by age. `None`: Kafka does not show it, as of a topic
/// that does not exist.
fn kept(topic: &ConfigResource) -> Option<Duration> {
    let value = |name| topic.get(name).and_then(|entry| entry.value.as_deref());
    let millis = value("retention.ms")?.parse().ok();
    let policy = value("cleanup.policy")?;
    Some(millis.filter(|_| policy.contains("delete")).map_or(Duration::MAX, Duration::from_millis))
}

#[cfg(test)]
mod tests {
    use rdkafka::admin::{ConfigEntry, ConfigSource, OwnedResourceSpecifier};

    use super::*;

    fn entry(name: &str, value: &str) -> ConfigEntry {
        let name = name.to_owned();
        let value = Some(value.to_owned());
        let source = ConfigSource::DynamicTopic;
        ConfigEntry { name, value, source, is_read_only: false, is_default: false, is_sensitive: false }
    }

    fn topic(entries: Vec<ConfigEntry>) -> ConfigResource {
        ConfigResource { specifier: OwnedResourceSpecifier::Topic("orders".to_owned()), entries }
    }

    #[test]
    fn a_topic_is_kept_for_its_time_or_for_ever() {
        for (millis, policy, expected) in [
            ("60000", "delete", Duration::from_secs(60)),
            ("60000", "compact,delete", Duration::from_secs(60)),
            ("60000", "compact", Duration::MAX),
            ("-1", "delete", Duration::MAX),
        ] {
            let topic = topic(vec![entry("cleanup.policy", policy), entry("retention.ms", millis)]);
            assert_eq!(kept(&topic), Some(expected), "{millis} {policy}");
        }
    }

    #[test]
    fn the_retention_of_a_topic_that_does_not_exist_is_unknown() {
        assert_eq!(kept(&topic(Vec::new())), None);
    }
}
