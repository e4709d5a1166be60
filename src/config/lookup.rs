//! Finds keys in the table by path.

use super::keys::{ConfigKey, keys};

/// Returns the key with this path, if any. Keys of one path differ in their meaning alone.
pub(super) fn find(path: &str) -> Option<&'static ConfigKey> {
    find_all(path).next()
}

/// Returns the keys with this path: one for each type of sink that has its own.
pub(super) fn find_all(path: &str) -> impl Iterator<Item = &'static ConfigKey> {
    keys().filter(move |key| matches(key.path, path))
}

/// Whether keys begin with this path.
pub(super) fn is_section(path: &str) -> bool {
    let depth = path.split('.').count();
    keys().any(|key| key.path.split('.').count() > depth && same_start(key.path, path))
}

fn matches(pattern: &str, path: &str) -> bool {
    let names = pattern.split('.').count();
    let parts = path.split('.').count();
    same_start(pattern, path) && (names == parts || pattern.ends_with(".*") && parts > names)
}

fn same_start(pattern: &str, path: &str) -> bool {
    pattern.split('.').zip(path.split('.')).all(|(name, part)| name == "*" || name == part)
}

/// Returns the known path of the same depth that is most similar to this one, if any is similar.
pub(super) fn nearest(path: &str) -> Option<String> {
    let parts: Vec<_> = path.split('.').collect();
    let known = keys().map(|key| {
        let names = key.path.split('.').zip(&parts).map(|(name, part)| if name == "*" { part } else { name });
        names.collect::<Vec<_>>().join(".")
    });
    let scored = known.map(|name| (strsim::damerau_levenshtein(&name, path), name));
    scored.filter(|(distance, _)| (1..=3).contains(distance)).min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sinks_numbers_of_routes_and_properties_are_found() {
        for path in ["relay.lease", "sinks.main.url_file", "routes.3.topic", "sinks.k.properties.compression.type"] {
            assert!(find(path).is_some(), "{path}");
        }
        for path in ["relay", "relay.lease_file", "sinks.url", "routes.topic", "sinks.k.properties", "sinks.k.url.x"] {
            assert!(find(path).is_none(), "{path}");
        }
    }

    /// A value is read before the type of its sink is known.
    #[test]
    fn keys_of_one_path_take_the_same_values() {
        for key in keys() {
            let first = find(key.path).unwrap();
            assert_eq!((key.kind, key.unset.default()), (first.kind, first.unset.default()), "{}", key.path);
        }
    }

    #[test]
    fn a_misspelt_name_finds_its_neighbour_and_a_strange_one_none() {
        assert_eq!(nearest("relay.leese").as_deref(), Some("relay.lease"));
        assert_eq!(nearest("sinks.main.broker").as_deref(), Some("sinks.main.brokers"));
        assert_eq!(nearest("rout").as_deref(), Some("routes"));
        for path in ["relay.lease", "relay.completely_new", "log.x", "relay"] {
            assert_eq!(nearest(path).filter(|near| near == path), None, "{path}");
        }
        assert_eq!(nearest("relay.completely_new"), None);
    }
}
