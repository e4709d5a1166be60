//! Whether Kafka keeps messages for longer than the inbox remembers them.

use std::time::Duration;

use outbox_core::check_window;
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier},
    config::FromClientConfigAndContext as _,
    error::KafkaResult,
};

use super::{Consumer, client::Client, context::Quiet};

const DEADLINE: Duration = Duration::from_secs(30);

/// Checks the topics in the background; warns, and sets the metric.
pub(super) fn watch(consumer: &Consumer) {
    let mut config = ClientConfig::new();
    consumer.finish(&mut config);
    let (topics, kept) = (consumer.topics.clone(), consumer.options.inbox_retention);
    let (name, metrics) = (consumer.inbox.consumer().to_owned(), consumer.options.metrics.clone());
    tokio::spawn(async move {
        match longest(&config, &topics).await {
            Ok(longest) => {
                let checked = check_window(kept, longest);
                metrics.window_short.with_label_values(&[&name]).set(i64::from(checked.is_err()));
                if let Err(error) = checked {
                    tracing::warn!(consumer = name, %error, "the topics are kept for longer than the inbox remembers");
                }
            }
            Err(error) => tracing::info!(consumer = name, %error, "cannot see for how long the topics are kept"),
        }
    });
}

/// How long a message can be read, in the topic that keeps it longest.
async fn longest(config: &ClientConfig, topics: &[String]) -> KafkaResult<Duration> {
    let admin: Client<AdminClient<Quiet>> = Client::new(AdminClient::from_config_and_context(config, Quiet)?);
    let topics: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
    let options = AdminOptions::new().request_timeout(Some(DEADLINE));
    let mut longest = Duration::ZERO;
    for topic in admin.describe_configs(&topics, &options).await? {
        longest = longest.max(kept(&topic.map_err(rdkafka::error::KafkaError::AdminOp)?));
    }
    Ok(longest)
}

/// The retention of a topic: for ever if messages are not deleted by age.
fn kept(topic: &ConfigResource) -> Duration {
    let value = |name| topic.get(name).and_then(|entry| entry.value.as_deref()).unwrap_or_default();
    let millis = value("retention.ms").parse().ok();
    let deletes = value("cleanup.policy").contains("delete");
    millis.filter(|_| deletes).map_or(Duration::MAX, Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use rdkafka::admin::{ConfigEntry, ConfigSource, OwnedResourceSpecifier};

    use super::*;

    fn entry(name: &str, value: &str) -> ConfigEntry {
        let (name, value, source) = (name.to_owned(), Some(value.to_owned()), ConfigSource::DynamicTopic);
        ConfigEntry { name, value, source, is_read_only: false, is_default: false, is_sensitive: false }
    }

    #[test]
    fn a_topic_is_kept_for_its_time_or_for_ever() {
        for (millis, policy, expected) in [
            ("60000", "delete", Duration::from_secs(60)),
            ("60000", "compact,delete", Duration::from_secs(60)),
            ("60000", "compact", Duration::MAX),
            ("-1", "delete", Duration::MAX),
            ("", "delete", Duration::MAX),
        ] {
            let entries = vec![entry("cleanup.policy", policy), entry("retention.ms", millis)];
            let topic = ConfigResource { specifier: OwnedResourceSpecifier::Topic("orders".to_owned()), entries };
            assert_eq!(kept(&topic), expected, "{millis} {policy}");
        }
    }
}
