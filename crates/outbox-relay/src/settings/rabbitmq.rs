//! The settings of a RabbitMQ sink.

use async_trait::async_trait;
use url::Url;

use super::{
    Binding, Secret, SinkConfig,
    keys::{ConfigKey, ORDERS},
    section::{keys, section},
    sink_type::{SinkSection, SinkType},
};
use crate::sink::broker::Broker;
#[cfg(feature = "rabbitmq")]
use crate::{
    destination::Destination,
    error::RunError,
    sink::{Feed, PublishError, arrivals::Arrivals, rabbitmq},
};

/// The type of sink.
pub(super) const TYPE: SinkType = SinkType {
    word: "rabbitmq",
    keys: &[RabbitMqConfig::KEYS, &[ROUTE_KEYS]],
    example: Some("rabbit"),
    read: |section| SinkConfig::new(read(section)),
};

section! {
    /// A RabbitMQ node or cluster.
    RabbitMqConfig in "sinks.*";
    keys {
        /// `amqps://user:password@host:port/vhost`.
        url: Secret ["rabbitmq"] = Required "amqps://relay@rabbit.example:5671/%2f";
        /// A file with the URL.
        url_file: File ["rabbitmq"] = Optional "/run/secrets/rabbit_url";
        /// The password, if the URL has none.
        password: Secret ["rabbitmq"] = Optional "secret";
        /// A file with the password.
        password_file: File ["rabbitmq"] = Optional "/run/secrets/rabbit_password";
        /// `https://user:password@host:port`, the management API, which `relay doctor` reads alone: bindings and queues. Without a user it is asked with the user and password of `url`. The user needs the tag `monitoring`.
        management_url: Secret ["rabbitmq"] = Optional "https://monitor@rabbit.example:15671";
        /// A file with that URL.
        management_url_file: File ["rabbitmq"] = Optional "/run/secrets/management_url";
        /// The password, if that URL has a user and no password.
        management_password: Secret ["rabbitmq"] = Optional "secret";
        /// A file with that password.
        management_password_file: File ["rabbitmq"] = Optional "/run/secrets/management_password";
        /// Allows a connection without TLS to another machine.
        plaintext: Switch ["kafka", "rabbitmq"] = Default "false";
    }
    given {
        /// `amqps://user:password@host:port/vhost`.
        url: Secret;
        /// The password, if it is not part of the URL.
        password: Option<Secret>;
        /// The management API; `None`: `relay doctor` does not ask it.
        management: Option<Box<Management>>;
    }
    read {
        /// Certificates of the authorities to trust, as PEM. Not set: those of the system.
        ca_file: File ["rabbitmq"] = Optional "/etc/outbox-relay/ca.pem";
        /// A certificate to show to the broker, with its chain, as PEM. Needs `key_file`.
        certificate_file: File ["rabbitmq"] = Optional "/etc/outbox-relay/client.pem";
        /// The key of that certificate, as PEM.
        key_file: File ["rabbitmq"] = Optional "/etc/outbox-relay/client.key";
        /// Channels that publish at the same time; fewer if RabbitMQ allows fewer.
        channels: Count(1, 255) ["rabbitmq"] = Default "4";
        /// Most unconfirmed messages of one channel.
        window: Count(1, 10_000) ["rabbitmq"] = Default "512";
    }
}

const ROUTE_KEYS: &[ConfigKey] = keys!("routes.*",
    /// RabbitMQ exchange, empty for the default one; `{topic}`, `{type}` and `{lane}` are replaced.
    exchange: Text ["rabbitmq"] = Required "amq.topic";
    /// Routing key; `{topic}`, `{type}`, `{key}` and `{lane}` are replaced.
    routing_key: Text ["rabbitmq"] = Default "{topic}";
    /// `strict`: one unconfirmed message per key. `pipelined`: several, which is faster for a hot key; after a nack
    /// or a lost connection its messages can be out of order.
    order: Words(ORDERS: bool) ["rabbitmq"] = Default "strict";
);

/// RabbitMQ's management API.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Management {
    /// `https://user:password@host:port`; without a user those of the sink.
    pub url: Secret,
    /// The password, if it is not part of the URL.
    pub password: Option<Secret>,
}

impl Management {
    /// Returns the API at this URL, with a password that is given apart.
    #[must_use]
    pub const fn new(url: Secret, password: Option<Secret>) -> Self {
        Self { url, password }
    }
}

impl RabbitMqConfig {
    /// Returns a node without files for TLS, with four channels of 512 messages.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        let url = Secret::new(url);
        Self {
            url,
            password: None,
            management: None,
            ca_file: None,
            certificate_file: None,
            key_file: None,
            channels: 4,
            window: 512,
        }
    }

    /// Returns the URL with the password in it, both with their files' current contents; `None` if the URL cannot be
    /// parsed.
    #[must_use]
    pub fn address(&self) -> Option<Url> {
        let mut url = Url::parse(&self.url.current()).ok()?;
        if let Some(password) = &self.password {
            url.set_password(Some(&password.for_url())).ok()?;
        }
        Some(url)
    }
}

fn read(section: &mut dyn SinkSection) -> RabbitMqConfig {
    let (url, password) = section.url("url", "password", &["amqps", "amqp"]);
    let (api, api_password) = section.url("management_url", "management_password", &["https", "http"]);
    let management = api.map(|url| Box::new(Management::new(url, api_password)));
    let url = url.unwrap_or_else(|| Secret::new(""));
    RabbitMqConfig::read(section, section.name(), (url, password, management))
}

#[async_trait]
impl Broker for RabbitMqConfig {
    #[cfg(feature = "rabbitmq")]
    fn feed(&self, name: &str) -> Result<Feed, RunError> {
        rabbitmq::feed(name, self)
    }

    fn binding(&self) -> Binding {
        Binding::AMQP
    }

    fn system(&self) -> &'static str {
        "rabbitmq"
    }

    /// A queue cannot be read beside its consumers. So there must be an exchange.
    fn can_listen(&self, target: &str) -> bool {
        !target.is_empty()
    }

    #[cfg(feature = "rabbitmq")]
    async fn listen(
        &self,
        destination: &Destination,
        deadline: std::time::Instant,
    ) -> Result<Option<Box<dyn Arrivals>>, PublishError> {
        rabbitmq::listen(self, destination, deadline).await
    }

    fn check(&self, section: &mut dyn SinkSection) {
        let urls = [
            (Some(&self.url), "url", "amqp"),
            (self.management.as_ref().map(|api| &api.url), "management_url", "http"),
        ];
        for (url, key, plain) in urls {
            let Some(url) = url.and_then(|url| Url::parse(url.text()).ok()) else { continue };
            if url.scheme() == plain {
                section.check_plaintext(key, &url, plain);
            }
        }
        check_management(self, section);
    }

    fn check_files(&self, section: &mut dyn SinkSection) {
        let files = [("ca_file", &self.ca_file), ("certificate_file", &self.certificate_file)];
        for (key, file) in files.into_iter().filter_map(|(key, file)| Some((key, file.as_ref()?))) {
            section.check_authority(key, file);
        }
        let [certificate, key] = ["certificate_file", "key_file"].map(|key| section.path(key));
        match (&self.certificate_file, &self.key_file) {
            (Some(_), None) => section.note(&certificate, format!("`{certificate}` needs `{key}`")),
            (None, Some(_)) => section.note(&key, format!("`{key}` needs `{certificate}`")),
            (Some(_), Some(file)) => section.check_key("key_file", file),
            (None, None) => {}
        }
        let uses_tls = self.url.text().starts_with("amqps:");
        let asks_by_tls = self.management.as_ref().is_some_and(|api| api.url.text().starts_with("https:"));
        let given = files.iter().find(|(key, file)| file.is_some() && !(asks_by_tls && *key == "ca_file"));
        if let Some((key, _)) = given.filter(|_| !uses_tls && !self.url.text().is_empty()) {
            let path = section.path(key);
            section.note(&path, format!("`{path}` is for amqps:// alone: use that, or remove it"));
        }
    }
}

/// Refuses a password without a user that it belongs to.
fn check_management(rabbit: &RabbitMqConfig, section: &mut dyn SinkSection) {
    let lacks_user = match &rabbit.management {
        Some(api) => Url::parse(api.url.text()).is_ok_and(|url| url.username().is_empty()),
        // A wrong URL was noted.
        None => !section.is_given(&section.written("management_url")),
    };
    let given = section.written("management_password");
    if lacks_user && section.is_given(&given) {
        let url = section.path("management_url");
        section.note(&given, format!("`{given}` needs a user in `{url}`: add it, or remove the password"));
    }
}
