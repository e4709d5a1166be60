//! The bindings of RabbitMQ's exchanges.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::{Finding, management::ManagementApi};

#[derive(Debug, Deserialize)]
struct Exchange {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    arguments: Value,
    policy: Option<String>,
}

#[derive(Debug, Deserialize)]
struct QueueBinding {
    destination: String,
    destination_type: String,
    routing_key: String,
}

impl QueueBinding {
    /// Whether it takes this routing key; one that is not known, or an exchange of another type, may take any.
    fn takes(&self, exchange: &Exchange, routing_key: Option<&str>) -> bool {
        match (exchange.kind.as_str(), routing_key) {
            ("direct", Some(key)) => self.routing_key == key,
            ("topic", Some(key)) => {
                let words = |text| str::split(text, '.').collect::<Vec<_>>();
                matches(&words(&self.routing_key), &words(key))
            }
            _ => true,
        }
    }
}

/// Whether the words of a pattern match those of a routing key: `*` is one word, `#` any number of them.
fn matches(pattern: &[&str], words: &[&str]) -> bool {
    match (pattern.split_first(), words.split_first()) {
        (None, None) => true,
        (Some((&"#", rest)), None) => matches(rest, words),
        (Some((&"#", rest)), Some((_, later))) => matches(rest, words) || matches(pattern, later),
        (Some((pattern, rest)), Some((word, later))) => (*pattern == "*" || pattern == word) && matches(rest, later),
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// The queues that messages for an exchange reach.
pub(super) enum Reached {
    /// These, or perhaps others: a policy may name an alternate exchange.
    Queues(BTreeSet<String>),
    /// None, though the exchange has this number of bindings.
    None { bindings: usize },
}

/// Follows the bindings from exchange to exchange, and alternate exchanges.
pub(super) fn reached(api: &ManagementApi, exchange: &str, routing_key: Option<&str>) -> Result<Reached, Finding> {
    let mut queues = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut next = vec![exchange.to_owned()];
    let mut bindings = 0;
    let mut is_unsure = false;
    while let Some(name) = next.pop() {
        if name.is_empty() {
            queues.extend(routing_key.map(str::to_owned));
            continue;
        }
        if !seen.insert(name.clone()) {
            continue;
        }
        let path = ["exchanges", api.vhost.as_str(), name.as_str(), "bindings", "source"];
        let found: Exchange = api.get(path.get(..3).unwrap_or(&path), "type,arguments,policy")?;
        let all: Vec<QueueBinding> = api.get(&path, "destination,destination_type,routing_key")?;
        bindings += all.len();
        let (to_queues, to_exchanges): (Vec<_>, Vec<_>) = all
            .into_iter()
            .filter(|binding| binding.takes(&found, routing_key))
            .partition(|binding| binding.destination_type == "queue");
        if to_queues.is_empty() && to_exchanges.is_empty() {
            let alternate = found.arguments.get("alternate-exchange").and_then(Value::as_str);
            is_unsure |= alternate.is_none() && found.policy.is_some();
            next.extend(alternate.map(str::to_owned));
        }
        queues.extend(to_queues.into_iter().map(|binding| binding.destination));
        next.extend(to_exchanges.into_iter().map(|binding| binding.destination));
    }
    Ok(if queues.is_empty() && !is_unsure { Reached::None { bindings } } else { Reached::Queues(queues) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_takes_the_routing_keys_of_its_exchange() {
        let takes = |kind: &str, pattern: &str, key: Option<&str>| {
            let exchange = Exchange { kind: kind.to_owned(), arguments: Value::Null, policy: None };
            let binding = QueueBinding {
                destination: String::new(),
                destination_type: String::new(),
                routing_key: pattern.to_owned(),
            };
            binding.takes(&exchange, key)
        };
        for (kind, pattern, key) in [
            ("direct", "a", Some("a")),
            ("direct", "b", None),
            ("fanout", "b", Some("a")),
            ("headers", "", Some("a")),
            ("topic", "#", Some("a.b")),
            ("topic", "a.*", Some("a.b")),
            ("topic", "a.#", Some("a")),
            ("topic", "#.c", Some("a.b.c")),
        ] {
            assert!(takes(kind, pattern, key), "{kind} {pattern} {key:?}");
        }
        for (kind, pattern, key) in [
            ("direct", "b", "a"),
            ("topic", "*", "a.b"),
            ("topic", "a.*", "a"),
            ("topic", "#.c", "a.b"),
            ("topic", "a", "a.b"),
        ] {
            assert!(!takes(kind, pattern, Some(key)), "{kind} {pattern} {key}");
        }
    }
}
