//! The settings of a Kafka sink.

use std::{collections::BTreeMap, path::Path, time::Duration};

use async_trait::async_trait;

use super::{
    Secret, SinkConfig, is_local,
    keys::{ConfigKey, Unset},
    section::{keys, section},
    sink_type::{SinkSection, SinkType},
    value::ValueKind,
};
use crate::sink::broker::Broker;
#[cfg(feature = "kafka")]
use crate::{
    destination::Destination,
    error::RunError,
    sink::{Feed, PublishError, arrivals::Arrivals, kafka},
};

/// The type of sink.
pub(super) const TYPE: SinkType = SinkType {
    word: "kafka",
    keys: &[KafkaConfig::KEYS, &[&[PROPERTIES], ROUTE_KEYS]],
    example: Some("main"),
    read: |section| SinkConfig::new(read(section)),
};

section! {
    /// A Kafka cluster.
    KafkaConfig in "sinks.*";
    keys {}
    given {
        /// Properties of librdkafka; those that would weaken the guarantees are refused.
        properties: BTreeMap<String, Secret>;
    }
    read {
        /// `host:port`, several separated by commas.
        brokers: Text ["kafka"] = Required "kafka-1:9093,kafka-2:9093";
    }
}

/// Any number of keys.
const PROPERTIES: ConfigKey = ConfigKey {
    path: "sinks.*.properties.*",
    kind: ValueKind::Property,
    unset: Unset::Optional(""),
    only: &["kafka"],
    help: "Properties of librdkafka under their own names, for example `security.protocol`, `ssl.ca.location`, \
           `sasl.username`, `linger.ms`. With `_file` behind its name a property is read from a file \
           (`\"sasl.password_file\"`). Those that weaken delivery or order are refused. The default of \
           `message.max.bytes` is 1048588: with a topic's larger `max.message.bytes`, raise it, too. The default of \
           `socket.timeout.ms` is `relay.publish_deadline`. After this time without a reply librdkafka leaves a broker \
           for another one. In variables `_` stands for the dot.",
};

const ROUTE_KEYS: &[ConfigKey] = keys!("routes.*",
    /// Kafka topic; `{topic}`, `{type}` and `{lane}` are replaced.
    topic: Text ["kafka"] = Default "{topic}";
);

impl KafkaConfig {
    /// Returns a cluster (`host:port`, several separated by commas) without further properties.
    #[must_use]
    pub fn new(brokers: impl Into<String>) -> Self {
        Self { properties: BTreeMap::new(), brokers: brokers.into() }
    }

    /// Returns a login that librdkafka cannot make here, with its property. librdkafka names its build options, or waits
    /// for a token for ever.
    fn login_problem(&self) -> Option<(&'static str, &'static str)> {
        let given = |name| self.properties.get(name).map(Secret::text);
        if !given("security.protocol")?.to_lowercase().starts_with("sasl") {
            return None;
        }
        match given("sasl.mechanism").or(given("sasl.mechanisms")).unwrap_or("GSSAPI") {
            "GSSAPI" => Some((
                "security.protocol",
                "set `sasl.mechanism` to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER: Kerberos (GSSAPI), the \
                 default, is not in this program",
            )),
            "OAUTHBEARER" if !has_oidc() => Some((
                "sasl.mechanism",
                "take a released program or image, or build with `--features oidc`: this program is built without \
                 OAUTHBEARER",
            )),
            "OAUTHBEARER" if given("sasl.oauthbearer.method") != Some("oidc") => Some((
                "sasl.mechanism",
                "set `sasl.oauthbearer.method` to oidc: the relay takes its tokens from an issuer alone",
            )),
            _ => None,
        }
    }
}

/// The time that a Kafka broker has for a reply, in milliseconds as librdkafka takes them. Then its connection ends,
/// and librdkafka asks another broker. It would ask a frozen one for a minute: it prefers the broker that it asked
/// last.
fn patience(deadline: Duration) -> Secret {
    Secret::new(deadline.as_millis().clamp(10, 300_000).to_string())
}

fn read(section: &mut dyn SinkSection) -> KafkaConfig {
    let mut properties = section.properties();
    let deadline = section.publish_deadline();
    properties.entry("socket.timeout.ms".to_owned()).or_insert_with(|| patience(deadline));
    KafkaConfig::read(section, section.name(), (properties,))
}

#[async_trait]
impl Broker for KafkaConfig {
    #[cfg(feature = "kafka")]
    fn feed(&self, name: &str) -> Result<Feed, RunError> {
        kafka::feed(name, self)
    }

    fn system(&self) -> &'static str {
        "kafka"
    }

    fn can_listen(&self, _target: &str) -> bool {
        true
    }

    #[cfg(feature = "kafka")]
    async fn listen(
        &self,
        destination: &Destination,
        deadline: std::time::Instant,
    ) -> Result<Option<Box<dyn Arrivals>>, PublishError> {
        kafka::listen(self, destination, deadline).await
    }

    fn check(&self, section: &mut dyn SinkSection) {
        let path = section.path("properties");
        for (name, value) in &self.properties {
            for problem in problems(name, value) {
                section.note(&format!("{path}.{name}"), format!("`{path}`: {problem}"));
            }
        }
        if let Some((name, problem)) = self.login_problem() {
            section.note(&format!("{path}.{name}"), format!("`{path}`: {problem}"));
        }
        if speaks_tls(self) || section.allows_plaintext() {
            return;
        }
        let hosts =
            self.brokers.split(',').map(|broker| broker.trim().rsplit_once(':').map_or(broker, |(host, _)| host));
        if hosts.filter(|host| !host.is_empty()).any(|host| !is_local(host)) {
            let path = section.path("brokers");
            section.note(
                &path,
                format!(
                    "`{path}` would be reached without TLS: set \"security.protocol\" to \"ssl\" or \
                 \"sasl_ssl\" in {}, or plaintext = true",
                    section.path("properties")
                ),
            );
        }
    }

    /// Checks the file of authorities. `probe` means the system's certificates, and a directory has them under
    /// OpenSSL's own names.
    fn check_files(&self, section: &mut dyn SinkSection) {
        let file = self.properties.get("ssl.ca.location").map(Secret::text).filter(|_| speaks_tls(self));
        if let Some(file) = file.filter(|file| *file != "probe" && !Path::new(file).is_dir()) {
            section.check_authority("properties.ssl.ca.location", Path::new(file));
        }
    }
}

/// Returns the problems of a property of librdkafka.
#[cfg(feature = "kafka")]
fn problems(name: &str, value: &Secret) -> Vec<String> {
    kafka::check_properties(&[(name.to_owned(), value.clone())].into())
}

/// Without Kafka its properties are not checked.
#[cfg(not(feature = "kafka"))]
fn problems(_name: &str, _value: &Secret) -> Vec<String> {
    Vec::new()
}

/// Whether librdkafka is built with libcurl, which fetches tokens.
#[cfg(feature = "kafka")]
fn has_oidc() -> bool {
    let features = rdkafka::ClientConfig::new().create_native_config().and_then(|it| it.get("builtin.features"));
    features.is_ok_and(|features| features.split(',').any(|feature| feature == "oidc"))
}

#[cfg(not(feature = "kafka"))]
fn has_oidc() -> bool {
    true
}

fn speaks_tls(kafka: &KafkaConfig) -> bool {
    kafka.properties.get("security.protocol").is_some_and(|protocol| protocol.text().to_lowercase().ends_with("ssl"))
}
