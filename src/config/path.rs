//! Paths of keys. A path that is not in the table of keys does not compile.

use std::{fmt, ops::Deref};

use outbox_relay::settings::sink_type::SINK_TYPES;

use super::keys::{ConfigKey, KEYS};

/// The path of a key in a section; only [`key!`] makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyPath(String);

impl KeyPath {
    /// Puts names in the places of `*`. For [`key!`].
    pub(super) fn new(pattern: &str, names: &[&str]) -> Self {
        Self(names.iter().fold(pattern.to_owned(), |path, name| path.replacen('*', name, 1)))
    }

    /// Returns the path of a key that a type of sink names.
    pub(super) fn of_sink(name: &str, key: &str) -> Self {
        Self(format!("sinks.{name}.{key}"))
    }

    /// Returns the path of the key of a route that names its target.
    pub(super) fn of_target(number: &str, key: &str) -> Self {
        Self(format!("routes.{number}.{key}"))
    }

    /// Returns the key that names a file with this one's value.
    pub(super) fn file(&self) -> Self {
        Self(format!("{}_file", self.0))
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Deref for KeyPath {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// The path of a key: `key!("relay.lease")`, or `key!("sinks.*.type", name)`. A path that is not in the table does not
/// compile.
macro_rules! key {
    ($pattern:literal $(, $name:expr)*) => {{
        const { assert!($crate::config::path::is_known($pattern), "no key has this path") }
        $crate::config::path::KeyPath::new($pattern, &[$(AsRef::<str>::as_ref(&$name)),*])
    }};
}
pub(super) use key;

#[expect(clippy::indexing_slicing, reason = "it runs in the compiler")]
pub(super) const fn is_known(pattern: &str) -> bool {
    let mut sink_type = 0;
    while sink_type < SINK_TYPES.len() {
        if is_one_of(SINK_TYPES[sink_type].keys, pattern) {
            return true;
        }
        sink_type += 1;
    }
    is_one_of(KEYS, pattern)
}

#[expect(clippy::indexing_slicing, reason = "it runs in the compiler")]
const fn is_one_of(keys: &[&[&[ConfigKey]]], pattern: &str) -> bool {
    let mut section = 0;
    while section < keys.len() {
        let mut block = 0;
        while block < keys[section].len() {
            let mut key = 0;
            while key < keys[section][block].len() {
                if is_same(keys[section][block][key].path.as_bytes(), pattern.as_bytes()) {
                    return true;
                }
                key += 1;
            }
            block += 1;
        }
        section += 1;
    }
    false
}

#[expect(clippy::indexing_slicing, reason = "it runs in the compiler")]
const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut index = 0;
    while index < a.len() && index < b.len() && a[index] == b[index] {
        index += 1;
    }
    index == a.len() && index == b.len()
}
