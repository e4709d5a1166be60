//! HTTP: a message is a POST, signed as [Standard Webhooks](https://www.standardwebhooks.com) says.
//!
//! The body is the payload. `request` lists the headers. A message counts as sent when the receiver has answered 2xx.
//! `sink` separates "surely did not arrive" from "may have arrived", and maps an answer to an outcome.
//!
//! Requests go out on several connections, so the relay waits for each answer before it hands over the next message of
//! a key. Neither redirects nor a proxy of the environment are followed: both would show a message to another machine.

#[cfg(feature = "http")]
mod connect;
#[cfg(feature = "http")]
mod request;
mod secret;
#[cfg(feature = "http")]
mod sink;

use url::Url;

#[cfg(feature = "http")]
pub use self::sink::{Http, HttpConfigError};
use super::broker::Broker;
use crate::settings::{
    Binding, Secret, SinkConfig,
    keys::ConfigKey,
    section::{keys, section},
    sink_type::{SinkSection, SinkType},
};
#[cfg(feature = "http")]
use crate::{error::RunError, sink::Feed};

/// The type of sink.
pub(crate) const TYPE: SinkType = SinkType {
    word: "http",
    keys: &[HttpConfig::KEYS, &[ROUTE_KEYS]],
    example: Some("hooks"),
    read: |section| SinkConfig::new(read(section)),
};

/// A path, and `ce-id`.
const BINDING: Binding = Binding { target: "path", routing_key: false, prefix: "ce-" };

section! {
    /// A receiver of HTTP requests.
    HttpConfig in "sinks.*";
    keys {
        /// `https://host:port/path`, without user and query. A message goes to this URL, followed by `/` and the `path`
        /// of its route.
        url: Secret ["http"] = Required "https://hooks.example/outbox";
        /// A file with the URL. It is read at the start alone.
        url_file: File ["http"] = Optional "/run/secrets/hooks_url";
        /// The secret that signs requests as Standard Webhooks says: `whsec_`, and 24 to 64 bytes in base64. Several,
        /// separated by spaces, sign each request with each of them, to change the secret. Not set: requests are not
        /// signed.
        secret: Secret ["http"] = Optional "whsec_...";
        /// A file with the secret.
        secret_file: File ["http"] = Optional "/run/secrets/hooks_secret";
        /// Allows a connection without TLS to another machine.
        plaintext: Switch ["http"] = Default "false";
    }
    given {
        /// `https://host:port/path`.
        url: Secret;
        /// The secrets that sign requests, separated by spaces; `None`: requests are not signed.
        secret: Option<Secret>;
    }
    read {
        /// Certificates of the authorities to trust, as PEM. Not set: those of the system.
        ca_file: File ["http"] = Optional "/etc/outbox-relay/ca.pem";
        /// Most requests at the same time, each on a connection of its own.
        connections: Count(1, 1_000) ["http"] = Default "16";
    }
}

const ROUTE_KEYS: &[ConfigKey] = keys!("routes.*",
    /// The path behind the URL of an HTTP sink; empty: that URL itself. `{topic}`, `{type}` and `{lane}` are replaced.
    path: Text ["http"] = Default "{topic}";
);

impl HttpConfig {
    /// Returns a receiver whose requests are not signed, with 16 connections, and the system's authorities.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: Secret::new(url), secret: None, ca_file: None, connections: 16 }
    }

    /// Returns the URL; `None` if it cannot be used.
    fn address(&self) -> Option<Url> {
        let url = Url::parse(self.url.text()).ok()?;
        let is_bare = url.username().is_empty() && url.password().is_none();
        let is_plain = url.query().is_none() && url.fragment().is_none();
        (matches!(url.scheme(), "http" | "https") && url.has_host() && is_bare && is_plain).then_some(url)
    }
}

fn read(section: &mut dyn SinkSection) -> HttpConfig {
    let url = section.secret("url").unwrap_or_else(|| Secret::new(""));
    let secret = section.secret("secret");
    HttpConfig::read(section, section.name(), (url, secret))
}

impl Broker for HttpConfig {
    #[cfg(feature = "http")]
    fn feed(&self, name: &str) -> Result<Feed, RunError> {
        let sink = Http::new(name, self).map_err(RunError::configuration)?;
        // A request carries one message, so none should wait in the sink for the answers to others.
        Ok(Feed::direct(name, std::sync::Arc::new(sink), self.connections, 1))
    }

    fn binding(&self) -> Binding {
        BINDING
    }

    fn system(&self) -> &'static str {
        "http"
    }

    fn check(&self, section: &mut dyn SinkSection) {
        let path = section.written("url");
        match self.address() {
            Some(url) if url.scheme() == "http" => section.check_plaintext("url", &url, "http"),
            // A URL that is missing, or whose file cannot be read, was noted.
            None if !self.url.text().is_empty() || section.is_given(&section.path("url")) => {
                section
                    .note(&path, format!("`{path}` must be https://host:port/path, without user, query and fragment"));
            }
            _ => {}
        }
        if self.secret.as_ref().is_some_and(|secret| secret::keys(secret.text()).is_none()) {
            let path = section.written("secret");
            section.note(
                &path,
                format!("`{path}` must be `whsec_` and 24 to 64 bytes in base64; several are separated by spaces"),
            );
        }
    }

    fn check_files(&self, section: &mut dyn SinkSection) {
        let Some(file) = &self.ca_file else { return };
        section.check_authority("ca_file", file);
        if self.address().is_some_and(|url| url.scheme() == "http") {
            let path = section.path("ca_file");
            section.note(&path, format!("`{path}` is for https:// alone: use that, or remove it"));
        }
    }
}
