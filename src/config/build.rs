//! Builds the typed configuration from checked settings.

use std::{collections::BTreeMap, time::Duration};

use outbox_relay::settings::default_owner;

use super::{
    ApiConfig, Binding, Canary, Config, Database, Envelope, Http, KafkaConfig, Log, LogLogin, Management,
    RabbitMqConfig, RelayConfig, Retention, RetryConfig, Route, Secret, SinkConfig, Tracing,
    keys::{ENVELOPES, ORDERS, SINK_TYPES, SinkType},
    path::{KeyPath, key},
    reader::SettingsReader,
};

/// The time that a Kafka broker has for a reply, in milliseconds as librdkafka takes them. Then its connection ends,
/// and librdkafka asks another broker. It would ask a frozen one for a minute: it prefers the broker that it asked
/// last.
fn patience(deadline: Duration) -> Secret {
    Secret::new(deadline.as_millis().clamp(10, 300_000).to_string())
}

impl SettingsReader {
    /// Builds the configuration. It is incomplete if problems were noted.
    pub(super) fn config(&mut self) -> Config {
        let mut config = Config::default();
        config.database = self.database();
        config.relay = RelayConfig::read(self, "", (self.owner(),));
        config.sinks = self.sinks(config.relay.publish_deadline);
        config.retry = RetryConfig::read(self, "", ());
        config.retention = Retention::read(self, "", ());
        config.http = self.http();
        config.api = ApiConfig::read(self, "", ());
        config.log = Log::read(self, "", ());
        config.tracing = self.tracing();
        config.canary = self.canary();
        config.routes = self.settings.routes.keys().map(|number| self.route(*number, config.retry)).collect();
        config
    }

    fn database(&mut self) -> Database {
        let (url, password) = self.url(&key!("database.url"), &key!("database.password"), &["mysql", "mariadb"]);
        let log_password = self.secret(&key!("database.log_password"));
        let log = self.text(&key!("database.log_user")).map(|user| LogLogin::new(user.to_owned(), log_password));
        Database::read(self, "", (url.unwrap_or_else(|| Secret::new("")), password, log))
    }

    /// Returns the listener, whatever else is wrong.
    pub(super) fn http(&self) -> Http {
        Http::read(self, "", ())
    }

    fn tracing(&self) -> Tracing {
        let endpoint = self.text(&key!("tracing.otlp_endpoint")).map(str::to_owned);
        Tracing::read(self, "", (endpoint,))
    }

    fn canary(&self) -> Canary {
        Canary::read(self, "", (self.text(&key!("canary.topic")).map(str::to_owned),))
    }

    /// Returns the given owner, or host and process id, in ASCII like the column. The running process adds a random
    /// part.
    fn owner(&self) -> String {
        self.text(&key!("relay.owner")).map_or_else(default_owner, str::to_owned)
    }

    fn sinks(&mut self, deadline: Duration) -> BTreeMap<String, SinkConfig> {
        let names: Vec<_> = self.settings.sinks.keys().cloned().collect();
        names.into_iter().filter_map(|name| Some((name.clone(), self.sink(&name, deadline)?))).collect()
    }

    /// Returns the sink with this deadline of a publish; `None` if its type is missing or unknown, which was noted.
    fn sink(&mut self, name: &str, deadline: Duration) -> Option<SinkConfig> {
        Some(match self.choice(&key!("sinks.*.type", name), &SINK_TYPES)? {
            SinkType::Kafka => {
                let mut properties = self.properties(name);
                properties.entry("socket.timeout.ms".to_owned()).or_insert_with(|| patience(deadline));
                SinkConfig::Kafka(KafkaConfig::read(self, name, (properties,)))
            }
            SinkType::RabbitMq => SinkConfig::RabbitMq(self.rabbit(name)),
            SinkType::Stdout => SinkConfig::Stdout,
            SinkType::Null => SinkConfig::Null,
        })
    }

    fn rabbit(&mut self, name: &str) -> RabbitMqConfig {
        let (url, password) = self.url(&key!("sinks.*.url", name), &key!("sinks.*.password", name), &["amqps", "amqp"]);
        let (api, api_password) = (key!("sinks.*.management_url", name), key!("sinks.*.management_password", name));
        let (api, api_password) = self.url(&api, &api_password, &["https", "http"]);
        let management = api.map(|url| Box::new(Management::new(url, api_password)));
        let url = url.unwrap_or_else(|| Secret::new(""));
        RabbitMqConfig::read(self, name, (url, password, management))
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

    fn route(&self, number: usize, retry: RetryConfig) -> Route {
        let number = number.to_string();
        let sink = self.string(&key!("routes.*.sink", number));
        // A sink of an unknown type was noted.
        let (target, routing_key, binding) = match self.choice(&key!("sinks.*.type", sink), &SINK_TYPES) {
            Some(SinkType::RabbitMq) => {
                let (exchange, routing_key) = (key!("routes.*.exchange", number), key!("routes.*.routing_key", number));
                (exchange, self.string(&routing_key), Binding::Amqp)
            }
            Some(SinkType::Kafka | SinkType::Stdout | SinkType::Null) | None => {
                (key!("routes.*.topic", number), String::new(), Binding::Kafka)
            }
        };
        let envelope = self.choice(&key!("routes.*.envelope", number), &ENVELOPES);
        let pipelined = self.choice(&key!("routes.*.order", number), &ORDERS).unwrap_or(false);
        let envelope = envelope.map_or(Envelope::Raw, |envelope| envelope(binding));
        let retry = self.retry_of_route(&number, retry);
        Route::read(self, &number, (self.string(&target), routing_key, pipelined, envelope, retry))
    }

    /// Returns the retries of a route that has some of its own. The rest are those of `[retry]`.
    fn retry_of_route(&self, number: &str, retry: RetryConfig) -> Option<RetryConfig> {
        let [own_base, own_max, own_attempts] = [
            key!("routes.*.retry_base", number),
            key!("routes.*.retry_max", number),
            key!("routes.*.max_attempts", number),
        ];
        let is_given = |path: &KeyPath| self.text(path).is_some();
        let time = |path: &KeyPath, other| if is_given(path) { self.duration(path) } else { other };
        let attempts = if is_given(&own_attempts) { self.count(&own_attempts) } else { retry.max_attempts };
        let own = RetryConfig::new(time(&own_base, retry.base), time(&own_max, retry.max), attempts);
        [own_base, own_max, own_attempts].iter().any(is_given).then_some(own)
    }
}
