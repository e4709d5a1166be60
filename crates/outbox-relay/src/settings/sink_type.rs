//! The types of sink: what each one is called, which keys it has, and how it reads and checks them.

use std::{collections::BTreeMap, path::Path, time::Duration};

use url::Url;

use super::{Secret, SinkConfig, is_local, kafka, keys::ConfigKey, rabbitmq, section::Given};
use crate::sink::{http, null, stdout};

/// The types, in the order of the documentation. A new type has its line here.
pub const SINK_TYPES: &[SinkType] = &[kafka::TYPE, rabbitmq::TYPE, http::TYPE, stdout::TYPE, null::TYPE];

/// A type of sink.
#[derive(Debug)]
pub struct SinkType {
    /// Its word in `type`.
    pub word: &'static str,
    /// Its keys, those in `[sinks.NAME]` before those of its routes.
    pub keys: &'static [&'static [&'static [ConfigKey]]],
    /// The name of its section in the commented example; `None`: it has none.
    pub example: Option<&'static str>,
    /// Reads its settings.
    pub read: fn(&mut dyn SinkSection) -> SinkConfig,
}

/// The words of all types.
#[expect(clippy::indexing_slicing, reason = "it runs in the compiler")]
pub(super) const fn words() -> [&'static str; SINK_TYPES.len()] {
    let mut words = [""; SINK_TYPES.len()];
    let mut index = 0;
    while index < words.len() {
        words[index] = SINK_TYPES[index].word;
        index += 1;
    }
    words
}

/// The section of a sink, which its type reads and checks. The program implements it.
pub trait SinkSection: Given {
    /// The sink's name.
    fn name(&self) -> &str;

    /// `relay.publish_deadline`.
    fn publish_deadline(&self) -> Duration;

    /// Reads the secret under this key, or in the file that `key_file` names.
    fn secret(&mut self, key: &str) -> Option<Secret>;

    /// Reads a URL with one of these schemes, and the password that is given apart.
    fn url(&mut self, key: &str, password: &str, schemes: &[&str]) -> (Option<Secret>, Option<Secret>);

    /// Reads the properties of librdkafka.
    fn properties(&mut self) -> BTreeMap<String, Secret>;

    /// Notes a problem of the value at this path.
    fn note(&mut self, path: &str, problem: String);

    /// Notes a file that this key names and that has no certificate.
    fn check_authority(&mut self, key: &str, file: &Path);

    /// Notes a file that this key names and that has no private key.
    fn check_key(&mut self, key: &str, file: &Path);
}

impl dyn SinkSection + '_ {
    /// Returns the path of a key.
    #[must_use]
    pub fn path(&self, key: &str) -> String {
        format!("sinks.{}.{key}", self.name())
    }

    /// Whether the key of this path was given.
    #[must_use]
    pub fn is_given(&self, path: &str) -> bool {
        self.given(path).is_some()
    }

    /// Returns the path under which a secret was given: that of the key, or of its file.
    #[must_use]
    pub fn written(&self, key: &str) -> String {
        let path = self.path(key);
        let file = self.path(&format!("{key}_file"));
        if !self.is_given(&path) && self.is_given(&file) { file } else { path }
    }

    /// Whether the sink may reach another machine without TLS.
    #[must_use]
    pub fn allows_plaintext(&self) -> bool {
        self.given(&self.path("plaintext")) == Some("true")
    }

    /// Notes a URL of this scheme without TLS that leads to another machine.
    pub fn check_plaintext(&mut self, key: &str, url: &Url, plain: &str) {
        if !url.host_str().is_some_and(is_local) && !self.allows_plaintext() {
            let path = self.written(key);
            let problem = "would be reached without TLS";
            self.note(&path, format!("`{path}` {problem}: use {plain}s://, or set plaintext = true"));
        }
    }
}
