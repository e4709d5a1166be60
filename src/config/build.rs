//! Builds the typed configuration from checked settings.

use std::{collections::BTreeMap, time::Duration};

use outbox_relay::settings::{default_owner, sink_type::SINK_TYPES};

use super::{
    ApiConfig, Binding, Canary, Config, ConsoleConfig, Database, Envelope, Http, Log, LogLogin, RelayConfig, Retention,
    RetryConfig, Route, Secret, SinkConfig, Tracing,
    keys::{ENVELOPES, ORDERS},
    path::{KeyPath, key},
    reader::SettingsReader,
    sink::SinkReader,
};

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
        config.console = ConsoleConfig::read(self, "", ());
        config.log = Log::read(self, "", ());
        config.tracing = self.tracing();
        config.canary = self.canary();
        let numbers = self.settings.routes.keys();
        config.routes = numbers.map(|number| self.route(*number, config.retry, &config.sinks)).collect();
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
    fn sink(&mut self, name: &str, publish_deadline: Duration) -> Option<SinkConfig> {
        let word = self.text(&key!("sinks.*.type", name))?;
        let read = SINK_TYPES.iter().find(|sink_type| sink_type.word == word)?.read;
        Some(read(&mut SinkReader { reader: self, name, publish_deadline }))
    }

    fn route(&self, number: usize, retry: RetryConfig, sinks: &BTreeMap<String, SinkConfig>) -> Route {
        let number = number.to_string();
        let sink = sinks.get(&self.string(&key!("routes.*.sink", number)));
        // A sink of an unknown type was noted.
        let binding = sink.map_or(Binding::KAFKA, |sink| sink.broker().binding());
        let target = self.string(&KeyPath::of_target(&number, binding.target));
        let routing_key = self.string(&key!("routes.*.routing_key", number));
        let routing_key = if binding.routing_key { routing_key } else { String::new() };
        let envelope = self.choice(&key!("routes.*.envelope", number), &ENVELOPES);
        let pipelined = self.choice(&key!("routes.*.order", number), &ORDERS).unwrap_or(false);
        let envelope = envelope.map_or(Envelope::Raw, |envelope| envelope(binding));
        let retry = self.retry_of_route(&number, retry);
        Route::read(self, &number, (target, routing_key, pipelined, envelope, retry))
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
