//! From checked settings to the typed configuration.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use super::{
    AfterDead, Binding, Config, Database, Envelope, Http, KafkaConfig, Log, LogFormat, OnRejected, RabbitMqConfig,
    RelayConfig, Retention, RetryConfig, Route, Secret, SinkConfig, reader::SettingsReader, value,
};

impl SettingsReader {
    /// Builds the configuration. Where problems were noted it is incomplete.
    pub(super) fn config(&mut self) -> Config {
        Config {
            database: self.database(),
            relay: self.relay(),
            retry: RetryConfig {
                base: self.duration("retry.base"),
                max: self.duration("retry.max"),
                max_attempts: u32::try_from(self.count("retry.max_attempts")).unwrap_or(u32::MAX),
            },
            retention: Retention {
                sent: self.duration("retention.sent"),
                dead: self.duration("retention.dead"),
                inbox: self.duration("retention.inbox"),
            },
            http: Http { listen: self.listen() },
            log: Log { level: self.string("log.level"), format: self.log_format() },
            sinks: self.sinks(),
            routes: self.settings.routes.keys().map(|number| self.route(&format!("routes.{number}"))).collect(),
        }
    }

    fn database(&mut self) -> Database {
        let (url, password) = self.url("database", &["mysql", "mariadb"]);
        let plaintext = self.text("database.plaintext") == Some("true");
        Database { url: url.unwrap_or_else(|| Secret::new("")), password, plaintext }
    }

    /// Where to listen.
    pub(super) fn listen(&self) -> Option<SocketAddr> {
        self.text("http.listen").and_then(|text| text.parse().ok())
    }

    fn relay(&self) -> RelayConfig {
        RelayConfig {
            owner: self.text("relay.owner").map_or_else(default_owner, str::to_owned),
            lanes: self.text("relay.lanes").and_then(value::lanes).unwrap_or_default(),
            lease: self.duration("relay.lease"),
            publish_deadline: self.duration("relay.publish_deadline"),
            settle_deadline: self.duration("relay.settle_deadline"),
            unroutable_grace: self.duration("relay.unroutable_grace"),
            safety: self.duration("relay.safety"),
            max_transaction_age: self.duration("relay.max_transaction_age"),
            claim_messages: self.count("relay.claim_messages"),
            claim_bytes: self.size("relay.claim_bytes"),
            in_flight_messages: self.count("relay.in_flight_messages"),
            in_flight_bytes: self.size("relay.in_flight_bytes"),
            readers: self.count("relay.readers"),
            settlers: self.count("relay.settlers"),
            claim_interval: self.duration("relay.claim_interval"),
            poll_interval: self.duration("relay.poll_interval"),
            stop_deadline: self.duration("relay.stop_deadline"),
        }
    }

    fn log_format(&self) -> LogFormat {
        if self.text("log.format") == Some("json") { LogFormat::Json } else { LogFormat::Text }
    }

    fn sinks(&mut self) -> BTreeMap<String, SinkConfig> {
        let names: Vec<_> = self.settings.sinks.keys().cloned().collect();
        names.into_iter().map(|name| (name.clone(), self.sink(&format!("sinks.{name}")))).collect()
    }

    fn sink(&mut self, path: &str) -> SinkConfig {
        match self.string(&format!("{path}.type")).as_str() {
            "kafka" => {
                let brokers = self.string(&format!("{path}.brokers"));
                SinkConfig::Kafka(KafkaConfig { brokers, properties: self.properties(path) })
            }
            "rabbitmq" => SinkConfig::RabbitMq(self.rabbit(path)),
            "stdout" => SinkConfig::Stdout,
            _ => SinkConfig::Null,
        }
    }

    fn rabbit(&mut self, path: &str) -> RabbitMqConfig {
        let (url, password) = self.url(path, &["amqps", "amqp"]);
        let file = |name: &str| self.text(&format!("{path}.{name}")).map(PathBuf::from);
        RabbitMqConfig {
            url: url.unwrap_or_else(|| Secret::new("")),
            password,
            ca_file: file("ca_file"),
            certificate_file: file("certificate_file"),
            key_file: file("key_file"),
            channels: self.count(&format!("{path}.channels")),
            window: self.count(&format!("{path}.window")),
        }
    }

    /// Properties of librdkafka; those with `_file` behind their name are read from files.
    fn properties(&mut self, path: &str) -> BTreeMap<String, Secret> {
        let start = format!("{path}.properties.");
        let given = self.settings.values.keys().filter_map(|path| path.strip_prefix(&start));
        let names: Vec<_> = given.map(|name| name.strip_suffix("_file").unwrap_or(name).to_owned()).collect();
        let read = |name: String| {
            let value = self.secret(&format!("{start}{name}"))?;
            Some((name, value))
        };
        let mut names = names;
        names.dedup();
        names.into_iter().filter_map(read).collect()
    }

    fn route(&self, path: &str) -> Route {
        let text = |name: &str| self.string(&format!("{path}.{name}"));
        let sink = text("sink");
        let is_rabbit = self.text(&format!("sinks.{sink}.type")) == Some("rabbitmq");
        Route {
            topics: text("topics"),
            target: text(if is_rabbit { "exchange" } else { "topic" }),
            routing_key: if is_rabbit { text("routing_key") } else { String::new() },
            on_rejected: if text("on_rejected") == "retry" { OnRejected::Retry } else { OnRejected::Dead },
            after_dead: if text("after_dead") == "block" { AfterDead::Block } else { AfterDead::Skip },
            pipelined: text("order") == "pipelined",
            envelope: envelope(&text("envelope"), if is_rabbit { Binding::Amqp } else { Binding::Kafka }),
            source: text("source"),
            sink,
        }
    }
}

fn envelope(name: &str, binding: Binding) -> Envelope {
    match name {
        "cloudevents-binary" => Envelope::CloudEventsBinary(binding),
        "cloudevents-json" => Envelope::CloudEventsJson(binding),
        "debezium" => Envelope::Debezium,
        _ => Envelope::Raw,
    }
}

/// Host and process id; what runs adds a random part. In ASCII, like the column.
fn default_owner() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host: String = name.chars().filter(char::is_ascii_graphic).take(70).collect();
    format!("{host}-{}", std::process::id())
}
