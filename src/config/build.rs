//! Builds the typed configuration from checked settings.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use super::{
    AfterDead, Binding, Config, Database, Envelope, Http, KafkaConfig, Log, LogFormat, OnRejected, RabbitMqConfig,
    RelayConfig, Retention, RetryConfig, Route, Secret, SinkConfig,
    keys::{AFTER_DEAD, ENVELOPES, LOG_FORMATS, ON_REJECTED, ORDERS, SINK_TYPES, SinkType},
    path::{KeyPath, key},
    reader::SettingsReader,
    value,
};

impl SettingsReader {
    /// Builds the configuration. It is incomplete if problems were noted.
    pub(super) fn config(&mut self) -> Config {
        let format = self.choice(&key!("log.format"), &LOG_FORMATS).unwrap_or(LogFormat::Text);
        Config {
            database: self.database(),
            relay: self.relay(),
            retry: RetryConfig {
                base: self.duration(&key!("retry.base")),
                max: self.duration(&key!("retry.max")),
                max_attempts: u32::try_from(self.count(&key!("retry.max_attempts"))).unwrap_or(u32::MAX),
            },
            retention: Retention {
                sent: self.duration(&key!("retention.sent")),
                dead: self.duration(&key!("retention.dead")),
                inbox: self.duration(&key!("retention.inbox")),
            },
            http: Http { listen: self.listen() },
            log: Log { level: self.string(&key!("log.level")), format },
            sinks: self.sinks(),
            routes: self.settings.routes.keys().map(|number| self.route(*number)).collect(),
        }
    }

    fn database(&mut self) -> Database {
        let (url, password) = self.url(&key!("database.url"), &key!("database.password"), &["mysql", "mariadb"]);
        let plaintext = self.text(&key!("database.plaintext")) == Some("true");
        Database { url: url.unwrap_or_else(|| Secret::new("")), password, plaintext }
    }

    /// Returns the address to listen on.
    pub(super) fn listen(&self) -> Option<SocketAddr> {
        self.text(&key!("http.listen")).and_then(|text| text.parse().ok())
    }

    fn relay(&self) -> RelayConfig {
        RelayConfig {
            owner: self.text(&key!("relay.owner")).map_or_else(default_owner, str::to_owned),
            lanes: self.text(&key!("relay.lanes")).and_then(value::lanes).unwrap_or_default(),
            lease: self.duration(&key!("relay.lease")),
            publish_deadline: self.duration(&key!("relay.publish_deadline")),
            settle_deadline: self.duration(&key!("relay.settle_deadline")),
            unroutable_grace: self.duration(&key!("relay.unroutable_grace")),
            safety: self.duration(&key!("relay.safety")),
            max_transaction_age: self.duration(&key!("relay.max_transaction_age")),
            claim_messages: self.count(&key!("relay.claim_messages")),
            claim_bytes: self.size(&key!("relay.claim_bytes")),
            in_flight_messages: self.count(&key!("relay.in_flight_messages")),
            in_flight_bytes: self.size(&key!("relay.in_flight_bytes")),
            readers: self.count(&key!("relay.readers")),
            settlers: self.count(&key!("relay.settlers")),
            claim_interval: self.duration(&key!("relay.claim_interval")),
            poll_interval: self.duration(&key!("relay.poll_interval")),
            stop_deadline: self.duration(&key!("relay.stop_deadline")),
        }
    }

    fn sinks(&mut self) -> BTreeMap<String, SinkConfig> {
        let names: Vec<_> = self.settings.sinks.keys().cloned().collect();
        names.into_iter().filter_map(|name| Some((name.clone(), self.sink(&name)?))).collect()
    }

    /// Returns the sink; `None` if its type is missing or unknown, which was noted.
    fn sink(&mut self, name: &str) -> Option<SinkConfig> {
        Some(match self.choice(&key!("sinks.*.type", name), &SINK_TYPES)? {
            SinkType::Kafka => {
                let brokers = self.string(&key!("sinks.*.brokers", name));
                SinkConfig::Kafka(KafkaConfig { brokers, properties: self.properties(name) })
            }
            SinkType::RabbitMq => SinkConfig::RabbitMq(self.rabbit(name)),
            SinkType::Stdout => SinkConfig::Stdout,
            SinkType::Null => SinkConfig::Null,
        })
    }

    fn rabbit(&mut self, name: &str) -> RabbitMqConfig {
        let (url, password) = self.url(&key!("sinks.*.url", name), &key!("sinks.*.password", name), &["amqps", "amqp"]);
        let file = |path: &KeyPath| self.text(path).map(PathBuf::from);
        RabbitMqConfig {
            url: url.unwrap_or_else(|| Secret::new("")),
            password,
            ca_file: file(&key!("sinks.*.ca_file", name)),
            certificate_file: file(&key!("sinks.*.certificate_file", name)),
            key_file: file(&key!("sinks.*.key_file", name)),
            channels: self.count(&key!("sinks.*.channels", name)),
            window: self.count(&key!("sinks.*.window", name)),
        }
    }

    /// Returns the properties of librdkafka. Those with `_file` behind their name are read from files.
    fn properties(&mut self, sink: &str) -> BTreeMap<String, Secret> {
        let start = key!("sinks.*.properties.*", sink, "");
        let given = self.settings.values.keys().filter_map(|path| path.strip_prefix(&*start));
        let mut names: Vec<_> = given.map(|name| name.strip_suffix("_file").unwrap_or(name).to_owned()).collect();
        names.dedup();
        let read = |name: String| {
            let value = self.secret(&key!("sinks.*.properties.*", sink, name))?;
            Some((name, value))
        };
        names.into_iter().filter_map(read).collect()
    }

    fn route(&self, number: usize) -> Route {
        let number = number.to_string();
        let sink = self.string(&key!("routes.*.sink", number));
        let is_rabbit = self.choice(&key!("sinks.*.type", sink), &SINK_TYPES) == Some(SinkType::RabbitMq);
        let target = if is_rabbit { key!("routes.*.exchange", number) } else { key!("routes.*.topic", number) };
        let routing_key = if is_rabbit { self.string(&key!("routes.*.routing_key", number)) } else { String::new() };
        let envelope = self.choice(&key!("routes.*.envelope", number), &ENVELOPES);
        let binding = if is_rabbit { Binding::Amqp } else { Binding::Kafka };
        Route {
            topics: self.string(&key!("routes.*.topics", number)),
            target: self.string(&target),
            routing_key,
            on_rejected: self.choice(&key!("routes.*.on_rejected", number), &ON_REJECTED).unwrap_or(OnRejected::Dead),
            after_dead: self.choice(&key!("routes.*.after_dead", number), &AFTER_DEAD).unwrap_or(AfterDead::Skip),
            pipelined: self.choice(&key!("routes.*.order", number), &ORDERS).unwrap_or(false),
            envelope: envelope.map_or(Envelope::Raw, |envelope| envelope(binding)),
            source: self.string(&key!("routes.*.source", number)),
            sink,
        }
    }
}

/// Returns host and process id, in ASCII like the column. The running process adds a random part.
fn default_owner() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host: String = name.chars().filter(char::is_ascii_graphic).take(70).collect();
    format!("{host}-{}", std::process::id())
}
