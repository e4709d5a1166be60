//! Paths of keys. A path that is not in the table of keys does not compile.

use std::{fmt, ops::Deref};

use super::keys::KEYS;

/// The path of a key in a section; only [`key!`] makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyPath(String);

impl KeyPath {
    /// Puts names in the places of `*`. For [`key!`].
    pub(super) fn new(pattern: &str, names: &[&str]) -> Self {
        Self(names.iter().fold(pattern.to_owned(), |path, name| path.replacen('*', name, 1)))
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
    let mut section = 0;
    while section < KEYS.len() {
        let mut block = 0;
        while block < KEYS[section].len() {
            let mut key = 0;
            while key < KEYS[section][block].len() {
                if is_same(KEYS[section][block][key].path.as_bytes(), pattern.as_bytes()) {
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
