//! Checks each setting against the table of keys, and hands out typed values.

use std::time::Duration;

use outbox_relay::settings::{
    sink_type::SINK_TYPES,
    value::{count, duration},
};

use super::{
    keys::{ConfigKey, SECTIONS, Unset, keys},
    lookup::{find, find_all},
    path::{KeyPath, key},
    section::{Given, Words},
    source::{Problem, Settings, ValueOrigin, is_secret},
    value::{self, WrittenKind as _},
};

/// A section that exists: `relay`, `sinks.main`, `routes.0`.
#[derive(Debug, Clone)]
pub(super) struct Section {
    /// Its name in the table: `relay`, `sinks.*`, `routes.*`.
    pub(super) pattern: &'static str,
    pub(super) path: String,
    /// The type of sink that decides which keys belong to it.
    pub(super) sink_type: Option<String>,
    origin: Option<ValueOrigin>,
}

impl Section {
    /// Returns the keys that belong here, with their paths, except those of a map.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&'static ConfigKey, String)> {
        let keys = keys().filter(|key| !key.is_map());
        keys.filter_map(|key| Some((key, self.own(key)?))).filter(|(key, _)| self.takes(key))
    }

    fn own(&self, key: &ConfigKey) -> Option<String> {
        let name = key.path.strip_prefix(self.pattern)?.strip_prefix('.')?;
        Some(format!("{}.{name}", self.path))
    }

    fn takes(&self, key: &ConfigKey) -> bool {
        let Some(sink_type) = self.sink_type.as_deref() else { return key.only.is_empty() };
        key.only.is_empty() || key.only.contains(&sink_type)
    }
}

impl Given for SettingsReader {
    fn given(&self, path: &str) -> Option<&str> {
        self.settings.values.get(path).map(|setting| setting.written.text.as_str())
    }
}

/// Settings that are read by path.
pub(super) struct SettingsReader {
    pub(super) settings: Settings,
}

impl SettingsReader {
    /// Checks all settings one by one. A wrong value is replaced by its default, so that the rest can be checked, too.
    pub(super) fn new(settings: Settings) -> Self {
        let mut reader = Self { settings };
        reader.check_values();
        for section in reader.sections() {
            reader.check_section(&section);
        }
        reader
    }

    fn check_values(&mut self) {
        let Settings { values, problems, .. } = &mut self.settings;
        values.retain(|path, setting| {
            let Some(key) = find(path) else { return false };
            if key.kind.accepts(&setting.written) {
                return true;
            }
            let given = if is_secret(key, path) { String::new() } else { format!(", not {}", setting.written.show()) };
            let text = format!("`{path}` must be {}{given}", key.kind.wanted());
            problems.push(Problem { at: setting.origin.to_string(), text });
            // Another problem for a missing key would be one too many.
            matches!(key.unset, Unset::Required(_))
        });
    }

    /// Returns all existing sections, in the order of the table.
    pub(super) fn sections(&self) -> Vec<Section> {
        let fixed = SECTIONS.iter().filter(|(pattern, _)| !pattern.ends_with(".*"));
        let fixed =
            fixed.map(|&(name, _)| Section { pattern: name, path: name.to_owned(), sink_type: None, origin: None });
        let sinks = self.settings.sinks.iter().map(|(name, origin)| Section {
            pattern: "sinks.*",
            path: format!("sinks.{name}"),
            sink_type: self.sink_type(name).map(str::to_owned),
            origin: Some(origin.clone()),
        });
        let routes = self.settings.routes.iter().map(|(number, origin)| Section {
            pattern: "routes.*",
            path: format!("routes.{number}"),
            sink_type: self.sink_type_of_route(*number).map(str::to_owned),
            origin: Some(origin.clone()),
        });
        fixed.chain(sinks).chain(routes).collect()
    }

    fn sink_type_of_route(&self, number: usize) -> Option<&str> {
        self.sink_type(self.text(&key!("routes.*.sink", number.to_string()))?)
    }

    /// Returns the type of a sink, if it is one: another word is a problem of its own, and not one of further keys.
    fn sink_type(&self, sink: &str) -> Option<&str> {
        let word = self.text(&key!("sinks.*.type", sink))?;
        SINK_TYPES.iter().map(|it| it.word).find(|known| *known == word)
    }

    fn check_section(&mut self, section: &Section) {
        self.check_missing(section);
        if let Some(sink_type) = &section.sink_type {
            self.check_foreign(section, sink_type);
        }
    }

    fn check_missing(&mut self, section: &Section) {
        let given = |settings: &Settings, path: &str| settings.values.contains_key(path);
        // Such a console asks others, which have the tables.
        let asks_others = ["console.via", "console.outboxes"].iter().any(|path| given(&self.settings, path));
        for (key, path) in section.keys().filter(|(key, _)| !(asks_others && key.path == "database.url")) {
            let given = |path: &str| given(&self.settings, path);
            if let Unset::Required(sample) = key.unset
                && !given(&path)
                && !given(&format!("{path}_file"))
            {
                let at = section.origin.as_ref().map_or_else(|| self.settings.home.clone(), ToString::to_string);
                let sample = value::quote(sample);
                self.settings.problem(at, format!("`{path}` is missing: give one, such as {} = {sample}", key.name()));
            }
        }
    }

    /// Notes keys that belong to another type of sink.
    fn check_foreign(&mut self, section: &Section, sink_type: &str) {
        let start = format!("{}.", section.path);
        let here = self.settings.values.iter().filter(|(path, _)| path.starts_with(&start));
        let foreign = here.filter_map(|(path, setting)| {
            if find_all(path).any(|key| section.takes(key)) {
                return None;
            }
            let owners = find_all(path).flat_map(|key| key.only).copied().collect::<Vec<_>>().join(" and ");
            let text = format!("`{path}` belongs to {owners}, the sink is {sink_type}: remove it");
            Some(Problem { at: setting.origin.to_string(), text })
        });
        let foreign: Vec<_> = foreign.collect();
        self.settings.problems.extend(foreign);
    }

    /// Returns the given value, or the default.
    pub(super) fn text(&self, path: &KeyPath) -> Option<&str> {
        self.given(path).or_else(|| find(path)?.unset.default())
    }

    /// Returns a text; empty if there is none.
    pub(super) fn string(&self, path: &KeyPath) -> String {
        self.text(path).unwrap_or_default().to_owned()
    }

    /// Returns the meaning of a word of a choice; `None` if the word is missing or unknown, which was noted.
    pub(super) fn choice<T: Copy, const N: usize>(&self, path: &KeyPath, words: &Words<T, N>) -> Option<T> {
        let given = self.text(path)?;
        words.iter().find(|(word, _)| *word == given).map(|(_, meaning)| *meaning)
    }

    /// Returns a time.
    pub(super) fn duration(&self, path: &KeyPath) -> Duration {
        self.text(path).and_then(duration).unwrap_or_default()
    }

    /// Returns a number.
    pub(super) fn count(&self, path: &KeyPath) -> usize {
        self.text(path).and_then(count).unwrap_or_default()
    }

    /// Returns the place where a path was given, or would be.
    pub(super) fn at(&self, path: &str) -> String {
        self.settings.values.get(path).map_or_else(|| self.settings.home.clone(), |setting| setting.origin.to_string())
    }
}
