//! Where settings come from: the file, the environment and flags, as one flat list of texts.

use std::{collections::BTreeMap, path::Path};

use toml_edit::{Document, Item, TableLike, Value};

/// A setting as it was written, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raw {
    /// Its text. A list is in brackets.
    pub text: String,
    /// `relay.toml:3:1`, `RELAY__RELAY__LEASE`, `--database-url` or `default`.
    pub origin: String,
}

/// Settings by place.
pub type Settings = BTreeMap<String, Raw>;

/// What is wrong, and what to do.
pub type Problem = String;

/// Reads a file into `settings`.
pub fn file(path: &Path, settings: &mut Settings, problems: &mut Vec<Problem>) {
    let name = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => toml(&name, &text, settings, problems),
        Err(error) => problems.push(format!("{name}: the file cannot be read ({error}): name another with --config")),
    }
}

/// Reads TOML into `settings`.
pub fn toml(name: &str, text: &str, settings: &mut Settings, problems: &mut Vec<Problem>) {
    match Document::parse(text) {
        Ok(document) => Flatten { name, text, settings, problems }.table("", document.as_table()),
        Err(error) => {
            let (line, column) = position(text, error.span().map_or(0, |span| span.start));
            problems.push(format!("{name}:{line}:{column}: {}", error.message()));
        }
    }
}

struct Flatten<'a> {
    name: &'a str,
    text: &'a str,
    settings: &'a mut Settings,
    problems: &'a mut Vec<Problem>,
}

impl Flatten<'_> {
    fn table(&mut self, place: &str, table: &dyn TableLike) {
        for (name, item) in table.iter() {
            let at = table.key(name).and_then(toml_edit::Key::span).map_or(0, |span| span.start);
            let path = if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
            self.item(&path, item, at);
        }
    }

    fn item(&mut self, path: &str, item: &Item, at: usize) {
        if let Some(tables) = item.as_array_of_tables() {
            for (i, table) in tables.iter().enumerate() {
                self.table(&format!("{path}.{i}"), table);
            }
        } else if let Some(table) = item.as_table_like() {
            self.table(path, table);
        } else if let Some(value) = item.as_value() {
            self.value(path, value, at);
        }
    }

    fn value(&mut self, path: &str, value: &Value, at: usize) {
        let (line, column) = position(self.text, at);
        let origin = format!("{}:{line}:{column}", self.name);
        let text = match value {
            Value::String(text) => text.value().clone(),
            Value::Integer(number) => number.value().to_string(),
            Value::Boolean(truth) => truth.value().to_string(),
            Value::Array(array) => array.to_string().trim().to_owned(),
            _ => {
                return self
                    .problems
                    .push(format!("{origin}: {path} must be a text in quotes, a whole number or a list"));
            }
        };
        self.settings.insert(path.to_owned(), Raw { text, origin });
    }
}

/// Line and column, from 1.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

/// Reads `RELAY__SECTION__KEY=…` into `settings`.
pub fn environment(variables: impl IntoIterator<Item = (String, String)>, settings: &mut Settings) {
    for (name, text) in variables {
        let Some(place) = name.strip_prefix("RELAY__") else { continue };
        let place = place.to_lowercase().replace("__", ".");
        // Names of Kafka's properties have dots, which variables cannot have.
        let place = match place.split_once(".properties.") {
            Some((sink, property)) => format!("{sink}.properties.{}", property.replace('_', ".")),
            None => place,
        };
        settings.insert(place, Raw { text, origin: name });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Settings, Vec<Problem>) {
        let (mut settings, mut problems) = (Settings::new(), Vec::new());
        toml("relay.toml", text, &mut settings, &mut problems);
        (settings, problems)
    }

    #[test]
    fn a_file_becomes_a_flat_list_with_line_and_column() {
        let (settings, problems) = read("[relay]\nlease = \"9s\"\nlanes = [1, 2]\n[[routes]]\ntopics = \"*\"\n");
        assert_eq!(problems, Vec::<String>::new());
        let raw = |text: &str, origin: &str| Raw { text: text.into(), origin: origin.into() };
        assert_eq!(settings["relay.lease"], raw("9s", "relay.toml:2:1"));
        assert_eq!(settings["relay.lanes"], raw("[1, 2]", "relay.toml:3:1"));
        assert_eq!(settings["routes.0.topics"], raw("*", "relay.toml:5:1"));
    }

    #[test]
    fn a_duplicate_key_and_a_wrong_type_are_named_with_their_place() {
        let (_, problems) = read("[relay]\nlease = \"9s\"\nlease = \"8s\"\n");
        assert_eq!(problems, ["relay.toml:3:1: duplicate key"]);
        let (_, problems) = read("[relay]\nlease = 1.5\n");
        assert_eq!(problems, ["relay.toml:2:1: relay.lease must be a text in quotes, a whole number or a list"]);
    }

    #[test]
    fn variables_name_the_same_places() {
        let mut settings = Settings::new();
        let variables =
            [("RELAY__SINKS__K__PROPERTIES__COMPRESSION_TYPE", "lz4"), ("HOME", "/"), ("RELAY__RELAY__LEASE", "9s")];
        environment(variables.map(|(name, text)| (name.to_owned(), text.to_owned())), &mut settings);
        let places: Vec<_> = settings.keys().map(String::as_str).collect();
        assert_eq!(places, ["relay.lease", "sinks.k.properties.compression.type"]);
    }
}
