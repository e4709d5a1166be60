//! The section of a sink, as its type reads and checks it.

use std::{collections::BTreeMap, path::Path, time::Duration};

use outbox_relay::settings::sink_type::SinkSection;

use super::{
    Secret,
    path::{KeyPath, key},
    reader::SettingsReader,
    section::Given,
};

/// The section of the sink with this name.
pub(super) struct SinkReader<'a> {
    pub(super) reader: &'a mut SettingsReader,
    pub(super) name: &'a str,
    pub(super) publish_deadline: Duration,
}

impl SinkReader<'_> {
    fn key(&self, key: &str) -> KeyPath {
        KeyPath::of_sink(self.name, key)
    }
}

impl Given for SinkReader<'_> {
    fn given(&self, path: &str) -> Option<&str> {
        self.reader.given(path)
    }
}

impl SinkSection for SinkReader<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn publish_deadline(&self) -> Duration {
        self.publish_deadline
    }

    fn secret(&mut self, key: &str) -> Option<Secret> {
        let path = self.key(key);
        self.reader.secret(&path)
    }

    fn url(&mut self, key: &str, password: &str, schemes: &[&str]) -> (Option<Secret>, Option<Secret>) {
        let url = self.key(key);
        let password = self.key(password);
        self.reader.url(&url, &password, schemes)
    }

    /// Those with `_file` behind their name are read from files.
    fn properties(&mut self) -> BTreeMap<String, Secret> {
        let start = key!("sinks.*.properties.*", self.name, "");
        let given = self.reader.settings.values.keys().filter_map(|path| path.strip_prefix(&*start));
        let mut names: Vec<_> = given.map(|name| name.strip_suffix("_file").unwrap_or(name).to_owned()).collect();
        names.dedup();
        let read = |name: String| {
            let value = self.reader.secret(&key!("sinks.*.properties.*", self.name, name))?;
            Some((name, value))
        };
        names.into_iter().filter_map(read).collect()
    }

    fn note(&mut self, path: &str, problem: String) {
        let at = self.reader.at(path);
        self.reader.settings.problem(at, problem);
    }

    fn check_authority(&mut self, key: &str, file: &Path) {
        let path = self.key(key);
        self.reader.check_authority(&path, &format!("`{path}`"), &file.display().to_string());
    }

    fn check_key(&mut self, key: &str, file: &Path) {
        let path = self.key(key);
        self.reader.check_key(&path, file);
    }
}
