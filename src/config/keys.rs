//! The one table of all settings: the loader, `relay config show|example` and docs/configuration.md are made from it.

/// What a setting holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// A text that is never printed; it can also be in a file, named by the same setting with `_file` appended.
    Secret,
    /// A number with a unit: `500ms`, `30s`, `5m`, `12h`, `7d`; `0` needs none.
    Duration,
    /// A number with a unit: `512B`, `64KiB`, `4MiB`, `1GiB`.
    Size,
    /// A whole number, at least 1.
    Count,
    /// A list of whole numbers.
    Lanes,
    /// `host:port` of this machine, or `off`.
    Address,
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// A setting.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its place; `*` stands for the name of a sink or the number of a route.
    pub path: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// What it is when nobody sets it; none: it must be set where it applies.
    pub default: Option<&'static str>,
    /// What it means.
    pub help: &'static str,
}

const fn key(path: &'static str, kind: Kind, default: Option<&'static str>, help: &'static str) -> Key {
    Key { path, kind, default, help }
}

use Kind::{Address, Choice, Count, Duration, Lanes, Secret, Size, Text};

/// All settings.
pub const KEYS: &[Key] = &[
    key(
        "database.url",
        Secret,
        None,
        "mysql://user@host:port/database. Without `ssl-mode=` in it: plain text to this machine, verified TLS to others.",
    ),
    key("database.password", Secret, Some(""), "The password, if it is not part of the URL."),
    key(
        "relay.owner",
        Text,
        Some(""),
        "The name under which claims are held; empty: the host's name and the process id. A random suffix is added.",
    ),
    key("relay.lanes", Lanes, Some("[]"), "The lanes to serve; none: all."),
    key(
        "relay.lease",
        Duration,
        Some("30s"),
        "How long a claim is valid without renewal: how late the messages of a dead relay are.",
    ),
    key("relay.publish_deadline", Duration, Some("10s"), "How long one publish may take."),
    key("relay.settle_deadline", Duration, Some("5s"), "How long one database call may take."),
    key("relay.safety", Duration, Some("5s"), "What the lease has left when both deadlines have passed."),
    key(
        "relay.max_transaction_age",
        Duration,
        Some("60s"),
        "The longest transaction of a service that enqueues. Later commits are delivered, perhaps out of order.",
    ),
    key("relay.claim_messages", Count, Some("1000"), "Most messages of one claim."),
    key("relay.claim_bytes", Size, Some("4MiB"), "Most bytes of one claim; a larger message is claimed alone."),
    key("relay.in_flight_messages", Count, Some("6000"), "Most messages that are claimed and not settled."),
    key("relay.in_flight_bytes", Size, Some("32MiB"), "Most bytes that are claimed and not published."),
    key("relay.readers", Count, Some("2"), "Claims that are read at the same time, each on a connection."),
    key("relay.settlers", Count, Some("2"), "Connections that write outcomes back."),
    key("relay.poll_interval", Duration, Some("100ms"), "The longest pause between two looks into an empty queue."),
    key("relay.stop_deadline", Duration, Some("15s"), "How long a stop may take before what is in flight is given up."),
    key(
        "retry.base",
        Duration,
        Some("1s"),
        "Upper bound of the first wait; each further bound is twice the last, the wait a random part of it.",
    ),
    key("retry.max", Duration, Some("5m"), "Upper bound of every wait."),
    key(
        "retry.max_attempts",
        Count,
        Some("20"),
        "After so many attempts a message is dead. An outage of the broker spends none.",
    ),
    key("retention.sent", Duration, Some("7d"), "How long sent messages and their receipts are kept; 0: for ever."),
    key("retention.dead", Duration, Some("30d"), "How long dead messages are kept; 0: for ever."),
    key(
        "retention.inbox",
        Duration,
        Some("7d"),
        "How long the inbox remembers; 0: for ever. Longer than any broker can redeliver.",
    ),
    key("http.listen", Address, Some("127.0.0.1:9464"), "Where /metrics, /livez and /readyz are; `off`: nowhere."),
    key("log.level", Text, Some("info"), "A filter, for example `info` or `warn,outbox_relay=debug`."),
    key("log.format", Choice(&["text", "json"]), Some("text"), "Text for people or JSON for programs."),
    key(
        "sinks.*.type",
        Choice(&["kafka", "rabbitmq", "stdout", "null"]),
        None,
        "What it is. `null` confirms everything and sends nothing.",
    ),
    key("sinks.*.brokers", Text, None, "Kafka: `host:port`, several separated by commas."),
    key("sinks.*.properties.*", Secret, None, "Kafka: properties of librdkafka, for example `\"security.protocol\"`."),
    key("sinks.*.url", Secret, None, "RabbitMQ: amqp://user:password@host:port/vhost."),
    key("sinks.*.channels", Count, Some("4"), "RabbitMQ: channels that publish at the same time."),
    key("sinks.*.window", Count, Some("512"), "RabbitMQ: most unconfirmed messages of a channel."),
    key(
        "routes.*.topics",
        Text,
        None,
        "Topics, with `*` for any number of characters. The first route that matches decides.",
    ),
    key("routes.*.sink", Text, None, "The name of the sink."),
    key("routes.*.topic", Text, Some("{topic}"), "Kafka: the topic; `{topic}`, `{type}` and `{lane}` are replaced."),
    key("routes.*.exchange", Text, Some(""), "RabbitMQ: the exchange; empty: the default exchange."),
    key(
        "routes.*.routing_key",
        Text,
        Some("{topic}"),
        "RabbitMQ: the routing key; `{topic}`, `{type}`, `{lane}` and `{key}` are replaced.",
    ),
    key(
        "routes.*.on_rejected",
        Choice(&["dead", "retry"]),
        Some("dead"),
        "What becomes of a message that the broker rejects.",
    ),
    key(
        "routes.*.after_dead",
        Choice(&["skip", "block"]),
        Some("skip"),
        "Whether later messages of a dead message's key go on or wait for the operator.",
    ),
    key(
        "routes.*.order",
        Choice(&["strict", "pipelined"]),
        Some("strict"),
        "RabbitMQ: `pipelined` is faster on a hot key, and a failure may reorder it.",
    ),
];

/// The setting at a place, such as `sinks.main.url`; also `…_file` of a secret.
#[must_use]
pub fn find(path: &str) -> Option<&'static Key> {
    let exact = KEYS.iter().find(|key| matches(key.path, path));
    exact.or_else(|| {
        let secret = path.strip_suffix("_file")?;
        KEYS.iter().find(|key| key.kind == Kind::Secret && matches(key.path, secret))
    })
}

fn matches(pattern: &str, path: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == path,
        Some((head, tail)) => {
            let Some(rest) = path.strip_prefix(head) else { return false };
            // The last star, of Kafka's properties, stands for a name with dots.
            if tail.is_empty() {
                return !rest.is_empty();
            }
            rest.split_once('.').is_some_and(|(name, _)| rest.get(name.len()..).is_some_and(|rest| matches(tail, rest)))
        }
    }
}

/// The name of a setting that is nearest to an unknown one, if one is near.
#[must_use]
pub fn nearest(path: &str) -> Option<String> {
    let (head, name) = path.rsplit_once('.').unwrap_or(("", path));
    let candidates = KEYS.iter().map(|key| {
        let (place, last) = key.path.rsplit_once('.').unwrap_or(("", key.path));
        let same_place = place.split('.').next() == head.split('.').next();
        (strsim::jaro_winkler(name, last) + if same_place { 0.2 } else { 0.0 }, key.path)
    });
    let best = candidates.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > 0.85).then(|| best.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_found_with_the_names_of_sinks_and_the_numbers_of_routes() {
        for path in [
            "relay.lease",
            "sinks.main.url",
            "sinks.main.url_file",
            "routes.3.topic",
            "sinks.k.properties.compression.type",
            "database.password_file",
        ] {
            assert!(find(path).is_some(), "{path}");
        }
        for path in ["relay.leese", "relay.lease_file", "sinks.url", "routes.topic", "sinks.k.properties."] {
            assert!(find(path).is_none(), "{path}");
        }
    }

    #[test]
    fn a_misspelt_name_finds_its_neighbour() {
        assert_eq!(nearest("relay.leese").as_deref(), Some("relay.lease"));
        assert_eq!(nearest("sinks.main.broker").as_deref(), Some("sinks.*.brokers"));
        assert_eq!(nearest("relay.xyz"), None);
    }
}
