//! Makes a commented configuration file, and docs/configuration.md, from the table of keys.

use outbox_relay::settings::sink_type::{SINK_TYPES, SinkType};

use super::{
    keys::{ConfigKey, SECTIONS, Unset, keys},
    value::WrittenKind as _,
};

/// Returns a configuration file with all keys: the required ones, and the others commented out at their defaults.
#[must_use]
pub fn example() -> String {
    let mut text = String::from(
        "# The configuration of the relay. What is commented out shows the default, or an example where there is \
         none.\n# Every key can also be given as a variable, RELAY__SECTION__KEY, and as a flag, --set \
         section.key=value.\n",
    );
    for section in SECTIONS {
        match section.0 {
            "sinks.*" => text.extend(SINK_TYPES.iter().filter_map(|SinkType { word, example, .. }| {
                let off = if *word == FIRST { "" } else { "# " };
                Some(block(off, &format!("[sinks.{}]", (*example)?), *section, word))
            })),
            "routes.*" => text += &block("", "[[routes]]", *section, FIRST),
            name => text += &block("", &format!("[{name}]"), *section, ""),
        }
    }
    text
}

/// The type of the sink that the example has. Those of the other types are commented out.
const FIRST: &str = "kafka";

/// Returns a section of the example. Each of its lines begins with `off`.
fn block(off: &str, head: &str, (pattern, help): (&str, &str), sink: &str) -> String {
    let mut text = format!("\n# {}\n{off}{head}\n", plain(help));
    let takes = |key: &&ConfigKey| key.only.is_empty() || key.only.contains(&sink) || pattern == "routes.*";
    text.extend(keys_of(pattern).filter(takes).map(|key| format!("{off}{}", line(key, sink))));
    text
}

pub(super) fn keys_of(pattern: &str) -> impl Iterator<Item = &'static ConfigKey> {
    keys().filter(move |key| {
        let name = key.path.strip_prefix(pattern).and_then(|rest| rest.strip_prefix('.'));
        name.is_some_and(|name| !name.contains('.') || key.is_map())
    })
}

fn line(key: &ConfigKey, sink: &str) -> String {
    if key.is_map() {
        return format!("properties = {{ \"security.protocol\" = \"ssl\" }}  # {}\n", plain(key.help));
    }
    let name = key.name();
    let text = if name == "type" { sink } else { key.sample() };
    // A route shows the keys of all types of sink.
    let foreign = !key.only.is_empty() && !key.only.contains(&sink);
    let off = if matches!(key.unset, Unset::Required(_)) && !foreign { "" } else { "# " };
    format!("{off}{name} = {}  # {}\n", key.kind.toml(text), plain(key.help))
}

fn plain(help: &str) -> String {
    help.replace('`', "")
}

/// Returns the page docs/configuration.md.
#[must_use]
pub fn reference() -> String {
    let mut text = String::from(include_str!("configuration.md"));
    for (pattern, help) in SECTIONS {
        let head = match *pattern {
            "sinks.*" => "[sinks.NAME]".to_owned(),
            "routes.*" => "[[routes]]".to_owned(),
            _ => format!("[{pattern}]"),
        };
        text.extend(["\n## `", &head, "`\n\n", help, "\n\n| key | default | meaning |\n|---|---|---|\n"]);
        text.extend(keys_of(pattern).map(row));
    }
    text + &format!("\n## Example\n\n`relay config example` prints it:\n\n```toml\n{}```\n", example())
}

fn row(key: &ConfigKey) -> String {
    let default = match key.unset {
        Unset::Default(text) => format!("`{}`", key.kind.toml(text)),
        Unset::Optional(_) => "not set".to_owned(),
        Unset::Required(_) => "must be given".to_owned(),
    };
    let name = if key.is_map() { "properties" } else { key.name() };
    let only = if key.only.is_empty() { String::new() } else { format!(" ({})", key.only.join(", ")) };
    format!("| `{name}`{only} | {default} | {} |\n", key.help.replace('|', "\\|"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::source::variable_name;

    #[test]
    fn every_key_has_a_section_and_a_variable_of_its_own() {
        let in_sections: usize = SECTIONS.iter().map(|(pattern, _)| keys_of(pattern).count()).sum();
        assert_eq!(in_sections, keys().count());
        let paths: BTreeSet<_> = keys().map(|key| key.path).collect();
        let variables: BTreeSet<_> = paths.iter().map(|path| variable_name(path)).collect();
        assert_eq!(variables.len(), paths.len());
    }
}
