//! Reads the TOML file into the flat map of settings.

use std::{fs, path::Path, sync::Arc};

use toml::de::{DeTable, DeValue};

use super::{
    keys::ConfigKey,
    lookup,
    source::{Settings, ValueOrigin},
    value::{Shape, WrittenValue},
};

/// Reads a file.
pub(super) fn read(path: &Path, settings: &mut Settings) {
    let name = path.display().to_string();
    match fs::read_to_string(path) {
        Ok(text) => parse(&name, &text, settings),
        Err(error) => {
            settings.problem(name, format!("the file cannot be read ({error}): see --config and RELAY_CONFIG"));
        }
    }
}

fn parse(name: &str, text: &str, settings: &mut Settings) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut walk = Walk { name: name.into(), text, settings };
    for error in errors {
        let span = error.span().unwrap_or_default();
        let key = (error.message() == "duplicate key").then(|| text.get(span.clone()).unwrap_or_default().trim());
        let origin = walk.origin(span.start);
        // Only its message: the whole error quotes the line, which may hold a secret.
        let problem = match key {
            Some(key) => format!("the key `{key}` is given twice: remove one of the two"),
            None => format!("this is not TOML: {}", error.message().replace('\n', "; ")),
        };
        walk.settings.problem(origin, problem);
    }
    walk.table("", table.get_ref());
}

struct Walk<'a> {
    name: Arc<str>,
    text: &'a str,
    settings: &'a mut Settings,
}

impl Walk<'_> {
    fn origin(&self, offset: usize) -> ValueOrigin {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        ValueOrigin::File { file: Arc::clone(&self.name), line, column }
    }

    fn table(&mut self, path: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let path = if path.is_empty() { name.get_ref().to_string() } else { format!("{path}.{}", name.get_ref()) };
            let origin = self.origin(name.span().start);
            self.entry(path, value.get_ref(), origin);
        }
    }

    fn entry(&mut self, path: String, value: &DeValue<'_>, origin: ValueOrigin) {
        let key = lookup::find(&path);
        let section = lookup::is_section(&path);
        match (value, key) {
            (DeValue::Table(table), _) if section || key.is_some_and(ConfigKey::is_map) => {
                self.settings.note(&path, &origin);
                self.table(&path, table);
            }
            (DeValue::Array(routes), None) if path == "routes" => {
                for (i, route) in routes.iter().enumerate() {
                    let origin = self.origin(route.span().start);
                    self.entry(format!("routes.{i}"), route.get_ref(), origin);
                }
            }
            (value, Some(_)) => self.settings.insert(path, written(value), origin),
            (_, None) if section => {
                self.settings
                    .problem(origin, format!("`{path}` is a section, not a value: see `relay config example`"));
            }
            (_, None) => self.settings.unknown("key", &path, lookup::nearest(&path), &origin),
        }
    }
}

fn written(value: &DeValue<'_>) -> WrittenValue {
    let (text, shape) = match value {
        DeValue::String(text) => (text.to_string(), Shape::Text),
        DeValue::Integer(number) => (number.to_string(), Shape::Number),
        DeValue::Float(number) => (number.to_string(), Shape::Number),
        DeValue::Boolean(switch) => (switch.to_string(), Shape::Switch),
        DeValue::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| written(item.get_ref()).text).collect();
            (items.join(", "), Shape::List)
        }
        DeValue::Datetime(_) => ("a date".to_owned(), Shape::Other),
        DeValue::Table(_) => ("a table".to_owned(), Shape::Other),
    };
    WrittenValue { text, shape }
}
