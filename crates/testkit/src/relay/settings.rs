//! The configuration file of a relay.

use anyhow::{Context as _, Result};
use toml::{Table, Value};

use crate::consume::{Broker, Topic};

/// A configuration with times for tests: a lease of three seconds.
#[derive(Debug, Clone)]
pub struct Settings {
    file: Table,
    environment: Vec<(String, String)>,
    limits: Vec<String>,
}

impl Settings {
    /// The settings for the database with this address, without any sink.
    #[must_use]
    pub fn new(database_url: &str) -> Self {
        Self { file: Table::new(), environment: Vec::new(), limits: Vec::new() }
            .set("database", "url", database_url)
            .set("relay", "lease", "3s")
            .set("relay", "publish_deadline", "1s")
            .set("relay", "settle_deadline", "500ms")
            .set("relay", "safety", "500ms")
            .set("relay", "unroutable_grace", "1s")
            .set("relay", "first_destination_grace", "1s")
            .set("retry", "base", "100ms")
            .set("retry", "max", "1s")
            .set("log", "level", "info,outbox_relay=debug,mysql_outbox=debug")
    }

    /// Sends everything to the broker of this topic, under the topic's own name.
    #[must_use]
    pub fn with_broker_of(self, topic: &Topic) -> Self {
        match topic.broker() {
            Broker::Kafka => {
                self.kafka(topic.address()).route([("topics", "*"), ("sink", "kafka"), ("topic", "{topic}")])
            }
            Broker::RabbitMq => self.rabbitmq(topic.address()).route([
                ("topics", "*"),
                ("sink", "rabbitmq"),
                ("exchange", topic.name()),
                ("routing_key", "{topic}"),
            ]),
        }
    }

    /// A sink `kafka`.
    #[must_use]
    pub fn kafka(self, brokers: &str) -> Self {
        self.sink("kafka", [("type", "kafka"), ("brokers", brokers)])
    }

    /// A sink `rabbitmq`.
    #[must_use]
    pub fn rabbitmq(self, url: &str) -> Self {
        self.sink("rabbitmq", [("type", "rabbitmq"), ("url", url)])
    }

    /// A sink `null`, which confirms everything and sends nothing.
    #[must_use]
    pub fn null(self) -> Self {
        self.sink("null", [("type", "null")])
    }

    fn sink<const N: usize>(mut self, name: &str, keys: [(&str, &str); N]) -> Self {
        let sink = keys.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
        put(&mut self.file, "sinks", name, Value::Table(sink));
        self
    }

    /// Sets a key of a sink, for example `("rabbitmq", "password_file", path)`.
    #[must_use]
    pub fn sink_key(mut self, sink: &str, key: &str, value: impl Into<Value>) -> Self {
        if let Some(Value::Table(sinks)) = self.file.get_mut("sinks") {
            put(sinks, sink, key, value.into());
        }
        self
    }

    /// A property of librdkafka for the sink `kafka`.
    #[must_use]
    pub fn kafka_property(mut self, name: &str, value: &str) -> Self {
        if let Some(Value::Table(sinks)) = self.file.get_mut("sinks")
            && let Some(Value::Table(kafka)) = sinks.get_mut("kafka")
        {
            put(kafka, "properties", name, value.into());
        }
        self
    }

    /// Adds a route before the existing ones.
    #[must_use]
    pub fn first_route<'a>(mut self, keys: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let others = self.file.remove("routes");
        self = self.route(keys);
        if let (Some(Value::Array(routes)), Some(Value::Array(others))) = (self.file.get_mut("routes"), others) {
            routes.extend(others);
        }
        self
    }

    /// Adds a route after the existing ones.
    #[must_use]
    pub fn route<'a>(mut self, keys: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let route: Table = keys.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
        let routes = self.file.entry("routes").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(routes) = routes {
            routes.push(Value::Table(route));
        }
        self
    }

    /// Sets a key of a section, for example `("relay", "claim_messages", 100)`.
    #[must_use]
    pub fn set(mut self, section: &str, key: &str, value: impl Into<Value>) -> Self {
        put(&mut self.file, section, key, value.into());
        self
    }

    /// Removes a key, which then has its default.
    #[must_use]
    pub fn unset(mut self, section: &str, key: &str) -> Self {
        if let Some(Value::Table(keys)) = self.file.get_mut(section) {
            keys.remove(key);
        }
        self
    }

    /// Sets deadlines that a busy machine keeps: for tests in which no message may be sent twice and no claim taken
    /// over.
    #[must_use]
    pub fn patient(self) -> Self {
        self.set("relay", "lease", "60s").set("relay", "publish_deadline", "20s").set("relay", "settle_deadline", "10s")
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Makes the relay die at a named point (debug builds only).
    #[must_use]
    pub fn crash_at(self, point: &str) -> Self {
        self.env("RELAY_CRASH_POINT", point)
    }

    /// Makes a part of the relay panic at a named point (debug builds only).
    #[must_use]
    pub fn panic_at(self, point: &str) -> Self {
        self.env("RELAY_PANIC_POINT", point)
    }

    /// Makes the relay pause once at a named point (debug builds only).
    #[must_use]
    pub fn pause_at(self, point: &str) -> Self {
        self.env("RELAY_PAUSE_POINT", point)
    }

    /// Sets a limit as the shell's `ulimit` does, for example `-n 64`.
    #[must_use]
    pub fn limit(mut self, limit: &str) -> Self {
        self.limits.push(limit.to_owned());
        self
    }

    /// A shell script that sets the limits and becomes the program in its arguments; `None` if there are no limits.
    pub(super) fn limits(&self) -> Option<String> {
        let set = |limit: &String| format!("ulimit {limit} && ");
        (!self.limits.is_empty()).then(|| self.limits.iter().map(set).collect::<String>() + "exec \"$0\" \"$@\"")
    }

    pub(super) fn environment(&self) -> &[(String, String)] {
        &self.environment
    }

    /// The file, with a listener on this port.
    ///
    /// # Errors
    /// When a value cannot be written.
    pub fn render(&self, port: u16) -> Result<String> {
        let settings = self.clone().set("http", "listen", format!("127.0.0.1:{port}"));
        toml::to_string(&settings.file).context("the settings are no TOML")
    }
}

/// Puts a value into a table of the file, and makes the table if it is missing.
fn put(file: &mut Table, name: &str, key: &str, value: Value) {
    let table = file.entry(name).or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(table) = table {
        table.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::Settings;

    #[test]
    fn sections_sinks_and_routes_are_written() {
        let settings = Settings::new("mysql://h/d").kafka("k:1").route([("topics", "*"), ("sink", "kafka")]);
        let text = settings.set("relay", "lease", "9s").render(81).unwrap();
        for line in ["[database]", "lease = \"9s\"", "[sinks.kafka]", "brokers = \"k:1\"", "[[routes]]", ":81\""] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
