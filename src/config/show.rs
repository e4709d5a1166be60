//! The effective values, each with its origin.

use super::{
    keys::{ConfigKey, Unset},
    lookup::find,
    reader::SettingsReader,
    source::{ValueOrigin, is_secret},
    value::{Shape, WrittenKind as _, WrittenValue},
};

/// An effective value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Effective {
    /// The key.
    pub key: String,
    /// Its value as TOML; `***` for a secret.
    pub value: String,
    /// The origin of the value.
    pub origin: ValueOrigin,
}

impl SettingsReader {
    /// Returns all effective values, in the order of the table of keys.
    pub(super) fn effective(&self) -> Vec<Effective> {
        self.sections()
            .iter()
            .flat_map(|section| {
                let fixed =
                    section.keys().filter_map(|(key, path)| self.given(key, &path).or_else(|| default(key, &path)));
                let properties = format!("{}.properties.", section.path);
                let map = self.settings.values.keys().filter(move |path| path.starts_with(&properties));
                let map = map.filter_map(|path| self.given(find(path)?, path));
                fixed.chain(map).collect::<Vec<_>>()
            })
            .collect()
    }

    fn given(&self, key: &ConfigKey, path: &str) -> Option<Effective> {
        let setting = self.settings.values.get(path)?;
        let value = if is_secret(key, path) { "***".to_owned() } else { show(key, &setting.written) };
        Some(Effective { key: path.to_owned(), value, origin: setting.origin.clone() })
    }
}

fn default(key: &ConfigKey, path: &str) -> Option<Effective> {
    let Unset::Default(text) = key.unset else { return None };
    let value = key.kind.toml(text);
    Some(Effective { key: path.to_owned(), value, origin: ValueOrigin::Default })
}

fn show(key: &ConfigKey, written: &WrittenValue) -> String {
    match written.shape {
        Shape::Word => key.kind.toml(&written.text),
        _ => written.show(),
    }
}
