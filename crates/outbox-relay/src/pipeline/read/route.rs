//! Resolves the destination of a message: the first route whose pattern matches the topic.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::{
    settings::{AfterDead, Binding, Envelope, OnRejected, RetryConfig, Route},
    sink::Destination,
};

/// The destination of a message, and the settings of its route.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The destination.
    pub destination: Arc<Destination>,
    /// The outcome of a rejected message.
    pub on_rejected: OnRejected,
    /// The effect of a dead message on its key.
    pub after_dead: AfterDead,
    /// The retries of its messages; `None`: those of all.
    pub retry: Option<RetryConfig>,
    /// Whether a key may have several unconfirmed messages.
    pub pipelined: bool,
    /// The shape on the wire.
    pub envelope: Envelope,
    /// The attribute `source` of CloudEvents; empty where the envelope has none.
    pub source: String,
}

/// No route matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoute;

/// All routes.
#[derive(Debug)]
pub struct Routes {
    routes: Vec<Route>,
    /// All sinks. Those of AMQP name a destination by exchange and routing key.
    sinks: HashMap<String, Binding>,
    /// Destinations are few, so messages share them.
    known: Mutex<HashMap<Destination, Arc<Destination>>>,
}

/// Most destinations that are remembered; a template with `{key}` makes one for each key.
const MAX_KNOWN: usize = 10_000;

impl Routes {
    /// Takes the routes in the order in which they are tried.
    #[must_use]
    pub fn new(routes: &[Route]) -> Self {
        Self { routes: routes.to_vec(), sinks: HashMap::new(), known: Mutex::default() }
    }

    /// Adds the sinks to which a replay may send messages elsewhere than their routes do.
    #[must_use]
    pub fn with_sinks(self, sinks: HashMap<String, Binding>) -> Self {
        Self { sinks, ..self }
    }

    /// Returns the destination of a message.
    pub fn resolve(
        &self,
        topic: &str,
        event_type: Option<&str>,
        key: Option<&[u8]>,
        lane: u16,
    ) -> Result<Resolved, NoRoute> {
        let route = self.routes.iter().find(|route| matches(&route.topics, topic)).ok_or(NoRoute)?;
        let fill = |template: &str| fill(template, topic, event_type, key, lane);
        let destination = Destination {
            sink: route.sink.clone(),
            target: fill(&route.target),
            routing_key: fill(&route.routing_key),
        };
        let destination = self.share(destination);
        let Route { on_rejected, after_dead, retry, pipelined, envelope, .. } = *route;
        let source = match envelope {
            Envelope::CloudEventsBinary(_) | Envelope::CloudEventsJson(_) => fill(&route.source),
            Envelope::Raw | Envelope::Debezium => String::new(),
        };
        Ok(Resolved { destination, on_rejected, after_dead, retry, pipelined, envelope, source })
    }

    /// Replaces the destination by `sink/topic`, or by `sink/exchange/routing key`. `None`: there is no such sink.
    pub fn elsewhere(&self, route: Resolved, to: &str) -> Option<Resolved> {
        let (sink, name) = to.split_once('/')?;
        let binding = *self.sinks.get(sink)?;
        let (target, routing_key) = binding.split(name);
        let [sink, target, routing_key] = [sink, target, routing_key].map(str::to_owned);
        let envelope = match route.envelope {
            Envelope::CloudEventsBinary(_) => Envelope::CloudEventsBinary(binding),
            Envelope::CloudEventsJson(_) => Envelope::CloudEventsJson(binding),
            other @ (Envelope::Raw | Envelope::Debezium) => other,
        };
        let destination = self.share(Destination { sink, target, routing_key });
        Some(Resolved { destination, envelope, ..route })
    }

    fn share(&self, destination: Destination) -> Arc<Destination> {
        let mut known = self.known.lock();
        if let Some(shared) = known.get(&destination) {
            return Arc::clone(shared);
        }
        let shared = Arc::new(destination.clone());
        if known.len() < MAX_KNOWN {
            known.insert(destination, Arc::clone(&shared));
        }
        shared
    }
}

/// Whether a pattern with `*` for any number of characters matches the whole of a text.
#[must_use]
pub fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(head) else { return false };
    (0..=text.len()).filter_map(|i| text.get(i..)).any(|tail| matches(rest, tail))
}

/// Replaces placeholders in one pass: inserted text is not searched again.
fn fill(template: &str, topic: &str, event_type: Option<&str>, key: Option<&[u8]>, lane: u16) -> String {
    let Some((head, rest)) = template.split_once('{') else { return template.to_owned() };
    let mut text = head.to_owned();
    for part in rest.split('{') {
        match part.split_once('}') {
            Some(("topic", tail)) => text.extend([topic, tail]),
            Some(("type", tail)) => text.extend([event_type.unwrap_or_default(), tail]),
            Some(("lane", tail)) => text.extend([lane.to_string().as_str(), tail]),
            Some(("key", tail)) => text.extend([&*String::from_utf8_lossy(key.unwrap_or_default()), tail]),
            _ => text.extend(["{", part]),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    fn route(topics: &str, target: &str, routing_key: &str) -> Route {
        Route {
            topics: topics.into(),
            sink: "s".into(),
            target: target.into(),
            routing_key: routing_key.into(),
            on_rejected: OnRejected::Dead,
            after_dead: AfterDead::Skip,
            pipelined: false,
            envelope: Envelope::Raw,
            retry: None,
            source: "/{topic}".into(),
        }
    }

    #[test]
    fn a_star_stands_for_any_number_of_characters() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "orders", true),
            ("orders", "orders", true),
            ("orders", "orders2", false),
            ("orders.*", "orders.placed", true),
            ("orders.*", "orders", false),
            ("*.placed", "orders.placed", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn the_first_route_that_matches_decides_and_templates_are_filled() {
        let routes = Routes::new(&[route("mail.*", "mail", "{topic}.{type}.{key}.{lane}"), route("*", "{topic}", "")]);
        let mail = routes.resolve("mail.sent", Some("t"), Some(b"k"), 3).unwrap().destination;
        assert_eq!((mail.target.as_str(), mail.routing_key.as_str()), ("mail", "mail.sent.t.k.3"));
        let other = routes.resolve("orders", None, None, 0).unwrap().destination;
        assert_eq!(other.target, "orders");
        assert!(Arc::ptr_eq(&other, &routes.resolve("orders", None, None, 0).unwrap().destination));
    }

    #[test]
    fn what_a_message_puts_into_a_template_is_not_a_template() {
        let routes = Routes::new(&[route("*", "{type}-{topic}", "{none}")]);
        let found = routes.resolve("t", Some("{topic}"), None, 0).unwrap().destination;
        assert_eq!((found.target.as_str(), found.routing_key.as_str()), ("{topic}-t", "{none}"));
    }

    #[test]
    fn the_source_of_an_event_is_filled_where_the_envelope_has_one() {
        let events = Envelope::CloudEventsJson(Binding::KAFKA);
        for (envelope, source) in [(events, "/orders/3"), (Envelope::Raw, ""), (Envelope::Debezium, "")] {
            let route = Route { envelope, source: "/{topic}/{lane}".into(), ..route("*", "t", "") };
            assert_eq!(Routes::new(&[route]).resolve("orders", None, None, 3).unwrap().source, source);
        }
    }

    #[test]
    fn elsewhere_is_a_topic_or_an_exchange_with_a_routing_key_of_a_known_sink() {
        let sinks = [("k".to_owned(), Binding::KAFKA), ("r".to_owned(), Binding::AMQP)];
        let route = Route { envelope: Envelope::CloudEventsJson(Binding::KAFKA), ..route("*", "t", "key") };
        let routes = Routes::new(&[route]).with_sinks(sinks.into());
        let found = |to| {
            let found = routes.elsewhere(routes.resolve("orders", None, None, 0).unwrap(), to)?;
            let Destination { sink, target, routing_key } = &*found.destination;
            Some((format!("{sink} {target} {routing_key}"), found.envelope, found.source))
        };
        let expected =
            |text: &str, binding| Some((text.to_owned(), Envelope::CloudEventsJson(binding), "/orders".to_owned()));
        assert_eq!(found("k/repair"), expected("k repair ", Binding::KAFKA));
        assert_eq!(found("k/a/b"), expected("k a/b ", Binding::KAFKA), "no topic has a slash: the broker refuses it");
        assert_eq!(found("r/repair/a/b"), expected("r repair a/b", Binding::AMQP));
        assert_eq!(found("r/fanout"), expected("r fanout ", Binding::AMQP));
        assert_eq!(found("r//queue"), expected("r  queue", Binding::AMQP), "the default exchange");
        assert_eq!([found("s/orders"), found("k")], [None, None]);
    }

    #[test]
    fn a_topic_without_route_has_no_destination() {
        let routes = Routes::new(&[route("mail.*", "mail", "")]);
        assert_eq!(routes.resolve("orders", None, None, 0).unwrap_err(), NoRoute);
    }
}
