//! Makes a commented configuration file, and docs/configuration.md, from the table of keys.

use super::{
    keys::{ConfigKey, SECTIONS, Unset, keys},
    value::WrittenKind as _,
};

/// Returns a configuration file with all keys: the required ones, and the others commented out at their defaults.
#[must_use]
pub fn example() -> String {
    let mut text = String::from(
        "# The configuration of the relay. What is commented out shows the default, or an example where there is none.\n\
         # Every key can also be given as a variable, RELAY__SECTION__KEY, and as a flag, --set section.key=value.\n",
    );
    for (pattern, help) in SECTIONS {
        match *pattern {
            "sinks.*" => text += &["kafka", "rabbitmq"].map(|sink| block(pattern, help, sink)).concat(),
            "routes.*" => text += &block(pattern, help, "kafka"),
            _ => text += &block(pattern, help, ""),
        }
    }
    text
}

/// Returns a section of the example. The second sink is commented out as a whole.
fn block(pattern: &str, help: &str, sink: &str) -> String {
    let off = if sink == "rabbitmq" { "# " } else { "" };
    let head = match (pattern, sink) {
        ("routes.*", _) => "[[routes]]".to_owned(),
        ("sinks.*", "rabbitmq") => "[sinks.rabbit]".to_owned(),
        ("sinks.*", _) => "[sinks.main]".to_owned(),
        _ => format!("[{pattern}]"),
    };
    let mut text = format!("\n# {}\n{off}{head}\n", plain(help));
    for key in keys_of(pattern).filter(|key| key.only.is_empty() || key.only.contains(&sink) || pattern == "routes.*") {
        text += off;
        text += &line(key, sink);
    }
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
    // Of two types of sink one is shown.
    let (text, foreign) = match name {
        "type" if !sink.is_empty() => (sink, false),
        _ => (key.sample(), key.path.starts_with("routes") && key.only == ["rabbitmq"]),
    };
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
    use super::*;
    use crate::config::source::variable_name;

    #[test]
    fn every_key_has_a_section_and_a_variable_of_its_own() {
        let in_sections: usize = SECTIONS.iter().map(|(pattern, _)| keys_of(pattern).count()).sum();
        assert_eq!(in_sections, keys().count());
        let mut variables: Vec<_> = keys().map(|key| variable_name(key.path)).collect();
        variables.sort();
        variables.dedup();
        assert_eq!(variables.len(), keys().count());
    }
}
