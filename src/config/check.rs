//! Checks that concern several keys.

use std::{ops::RangeInclusive, time::Duration};

use outbox_relay::{pipeline::read::route::matches, settings::sink_type::SINK_TYPES};

use super::{
    Binding, Config, RetryConfig, Route,
    path::{KeyPath, key},
    reader::SettingsReader,
    sink::SinkReader,
    source::Problem,
};

/// The bounds of `canary.interval`: each canary has a connection of its own, and the alert waits for 110 s.
const CANARY_INTERVALS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_mins(1);

impl SettingsReader {
    /// Notes settings that do not fit together.
    pub(super) fn check(&mut self, config: &Config) {
        self.check_relay(config);
        self.check_owner(config);
        self.check_database(config);
        self.check_tracing(config);
        for (name, sink) in &config.sinks {
            self.check_name(name);
            sink.broker().check(&mut self.section(name, config));
        }
        for (number, route) in self.settings.routes.keys().copied().collect::<Vec<_>>().into_iter().zip(&config.routes)
        {
            self.check_route(&number.to_string(), route, config);
        }
    }

    /// Notes what a relay lacks beside the database.
    pub(super) fn check_complete(&mut self, config: &Config) {
        if config.sinks.is_empty() {
            let types = SINK_TYPES.iter().map(|sink_type| sink_type.word).collect::<Vec<_>>().join(", ");
            self.add_home(format!("there is no sink: add a section [sinks.main] with a type ({types})"));
        }
        if config.routes.is_empty() {
            self.add_home("there is no route: add [[routes]] with topics = \"*\" and the name of a sink".to_owned());
        }
        self.check_canary(config);
        for (name, sink) in &config.sinks {
            sink.broker().check_files(&mut self.section(name, config));
        }
    }

    fn section<'a>(&'a mut self, name: &'a str, config: &Config) -> SinkReader<'a> {
        SinkReader { reader: self, name, publish_deadline: config.relay.publish_deadline }
    }

    fn add(&mut self, path: &str, text: String) {
        let at = self.at(path);
        self.settings.problems.push(Problem { at, text });
    }

    fn add_home(&mut self, text: String) {
        let at = self.settings.home.clone();
        self.settings.problems.push(Problem { at, text });
    }

    /// Returns the first of these keys that was given.
    fn first_given<'a>(&self, paths: &[&'a str]) -> &'a str {
        let given = paths.iter().find(|path| self.settings.values.contains_key(**path));
        given.or(paths.first()).copied().unwrap_or_default()
    }

    fn check_relay(&mut self, config: &Config) {
        let relay = &config.relay;
        let need = relay.shortest_lease();
        if need > relay.lease {
            let path =
                self.first_given(&["relay.lease", "relay.publish_deadline", "relay.settle_deadline", "relay.safety"]);
            self.add(path, format!(
                "`relay.lease` ({:?}) is shorter than publish_deadline ({:?}) + settle_deadline ({:?}) + safety ({:?}) \
                 = {need:?}: another relay could take over messages that are still on their way. Raise the lease or \
                 lower a deadline",
                relay.lease, relay.publish_deadline, relay.settle_deadline, relay.safety
            ));
        }
        for (claim, in_flight, too_much) in [
            ("claim_messages", "in_flight_messages", relay.claim_messages > relay.in_flight_messages),
            ("claim_bytes", "in_flight_bytes", relay.claim_bytes > relay.in_flight_bytes),
        ] {
            if too_much {
                let claim = format!("relay.{claim}");
                let in_flight = format!("relay.{in_flight}");
                let path = self.first_given(&[&in_flight, &claim]).to_owned();
                self.add(&path, format!("`{in_flight}` is less than `{claim}`: raise it"));
            }
        }
        let retry = &config.retry;
        if retry.base > retry.max {
            let path = self.first_given(&["retry.base", "retry.max"]);
            self.add(
                path,
                format!("`retry.base` ({:?}) is longer than `retry.max` ({:?}): lower it", retry.base, retry.max),
            );
        }
    }

    /// Checks the owner. The column has 100 characters, nine of them for what the process adds.
    fn check_owner(&mut self, config: &Config) {
        let owner = &config.relay.owner;
        if owner.is_empty() || owner.len() > 90 || !owner.bytes().all(|byte| byte.is_ascii_graphic()) {
            self.add(
                "relay.owner",
                "`relay.owner` must have 1 to 90 printable ASCII characters without spaces".to_owned(),
            );
        }
    }

    fn check_tracing(&mut self, config: &Config) {
        let Some(endpoint) = &config.tracing.otlp_endpoint else { return };
        let path = "tracing.otlp_endpoint";
        match url::Url::parse(endpoint).ok().filter(|url| ["http", "https"].contains(&url.scheme())) {
            None => self.add(path, format!("`{path}` must be an address such as http://127.0.0.1:4318")),
            Some(url) if !url.username().is_empty() || url.password().is_some() => {
                let text = "`tracing.otlp_endpoint` holds a user or password, which would be printed: put them into \
                            OTEL_EXPORTER_OTLP_HEADERS";
                self.add(path, text.to_owned());
            }
            Some(url) if url.query().is_some() || url.fragment().is_some() || url.path().ends_with("/v1/traces") => {
                self.add(path, format!("`{path}` must end before /v1/traces, which the relay adds: remove the rest"));
            }
            Some(_) => {}
        }
    }

    fn check_canary(&mut self, config: &Config) {
        let Some(topic) = &config.canary.topic else { return };
        let route = config.routes.iter().find(|route| matches(&route.topics, topic));
        let can_be_read = route.is_some_and(|route| {
            config.sinks.get(&route.sink).is_some_and(|sink| sink.broker().can_listen(&route.target))
        });
        if !CANARY_INTERVALS.contains(&config.canary.interval) {
            self.add("canary.interval", "`canary.interval` must be from 1s to 60s".to_owned());
        }
        if !can_be_read {
            let text = format!(
                "`canary.topic` is {topic:?}, and no route sends it to a Kafka topic or to an exchange of RabbitMQ: \
                 add one"
            );
            self.add("canary.topic", text);
        }
    }

    fn check_database(&mut self, config: &Config) {
        let password = self.first_given(&["database.log_password", "database.log_password_file"]);
        let is_noted = self.settings.problems.iter().any(|problem| problem.text.contains("`database.log_user`"));
        match &config.database.log {
            None if self.settings.values.contains_key(password) && !is_noted => {
                self.add(password, format!("`{password}` needs `database.log_user`"));
            }
            Some(log) if log.user.is_empty() => {
                self.add(
                    "database.log_user",
                    "`database.log_user` is empty: name an account, or leave it out".to_owned(),
                );
            }
            _ => {}
        }
        let text = config.database.url.text();
        if text.is_empty() {
            return;
        }
        let path = self.first_given(&["database.url", "database.url_file"]);
        if url::Url::parse(text).is_ok_and(|url| url.path().trim_matches('/').is_empty()) {
            self.add(
                path,
                format!("`{path}` names no database: put its name behind the port, as in mysql://user@host:3306/shop"),
            );
        }
        match outbox_relay::database::options(&config.database) {
            Ok(options) => self.check_database_authority(path, text, options.get_ssl_mode()),
            Err(error) => self.add(path, format!("`{path}` cannot be used: {error}")),
        }
    }

    fn check_name(&mut self, name: &str) {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name == "database" || name.is_empty() || name.contains("__") || !name.chars().all(good) {
            let at = self.settings.sinks.get(name).map(ToString::to_string).unwrap_or_default();
            let text = format!(
                "the sink cannot be called `{name}`: use lowercase letters, digits and `_`, and not `database`"
            );
            self.settings.problems.push(Problem { at, text });
        }
    }

    fn check_route(&mut self, number: &str, route: &Route, config: &Config) {
        let sink = key!("routes.*.sink", number);
        if self.text(&sink).is_some() && !self.settings.sinks.contains_key(&route.sink) {
            let known: Vec<_> = self.settings.sinks.keys().map(String::as_str).collect();
            self.add(
                &sink,
                format!(
                    "`{sink}` names the sink `{}`, which does not exist: there is {}",
                    route.sink,
                    known.join(", ")
                ),
            );
        }
        let binding = config.sinks.get(&route.sink).map_or(Binding::KAFKA, |sink| sink.broker().binding());
        for (key, allowed) in [
            (KeyPath::of_target(number, binding.target), &["topic", "type", "lane"][..]),
            (key!("routes.*.routing_key", number), &["topic", "type", "key", "lane"]),
            (key!("routes.*.source", number), &["topic", "lane"]),
        ] {
            if let Some(wrong) = self.text(&key).and_then(|template| unknown_placeholder(template, allowed)) {
                let allowed: Vec<_> = allowed.iter().map(|name| format!("{{{name}}}")).collect();
                let text = format!("`{key}` has `{wrong}`: it may have {}", allowed.join(", "));
                self.add(&key, text);
            }
        }
        if let Some(RetryConfig { base, max, .. }) = route.retry.filter(|retry| retry.base > retry.max) {
            let first = key!("routes.*.retry_base", number);
            let last = key!("routes.*.retry_max", number);
            let path = self.first_given(&[&first, &last]).to_owned();
            self.add(
                &path,
                format!("`{first}` ({base:?}) is longer than `{last}` ({max:?}): lower it, or raise the other"),
            );
        }
        let source = key!("routes.*.source", number);
        let envelope = key!("routes.*.envelope", number);
        let has_one = !matches!(self.text(&envelope), Some("raw" | "debezium"));
        if !has_one && self.settings.values.contains_key(&*source) {
            let text = format!("`{source}` is for the envelopes of CloudEvents: remove it, or set `{envelope}`");
            self.add(&source, text);
        }
        self.check_source(&source, &route.source);
    }

    /// Checks a template with `_` in place of topic and lane. If that is a reference, neither can spoil it, because a
    /// scheme has no `_`.
    fn check_source(&mut self, key: &str, source: &str) {
        let filled = source.replace("{topic}", "_").replace("{lane}", "_");
        // Other placeholders were noted.
        if !filled.contains('{') && !is_uri_reference(&filled) {
            let text = format!("`{key}` is not a URI reference: give one, such as \"https://shop.example/{{topic}}\"");
            self.add(key, text);
        }
    }
}

/// Whether a text is a URI reference (RFC 3986) and not empty. Addresses in brackets are not supported.
fn is_uri_reference(text: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || "-._~:/?#@!$&'()*+,;=%".contains(c);
    let escape = |rest: &str| rest.get(..2).is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    // Text before a colon in the first segment is a scheme.
    let head = text.split(['/', '?', '#']).next().and_then(|first| first.split_once(':'));
    let is_scheme = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    !text.is_empty()
        && text.chars().all(legal)
        && text.split('%').skip(1).all(escape)
        && text.matches('#').count() <= 1
        && head.is_none_or(|(scheme, _)| is_scheme(scheme))
}

/// Returns the first `{…}` of a template that is not allowed.
fn unknown_placeholder<'a>(template: &'a str, allowed: &[&str]) -> Option<&'a str> {
    let (_, rest) = template.split_once('{')?;
    let name = rest.split_once('}').map_or(rest, |(name, _)| name);
    if allowed.contains(&name) {
        return unknown_placeholder(rest, allowed);
    }
    let start = template.len() - rest.len() - 1;
    template.get(start..(start + name.len() + 2).min(template.len()))
}
