//! Printing settings: the effective ones, and an example of all.

use std::fmt::Write as _;

use super::{
    keys::{self, KEYS, Kind},
    source::Settings,
};

/// Each setting with where it came from; secrets as `***`. One row a setting: place, text, origin.
#[must_use]
pub fn rows(settings: &Settings) -> Vec<[String; 3]> {
    let row = |(path, raw): (&String, &super::source::Raw)| {
        let secret = keys::find(path).is_none_or(|key| key.kind == Kind::Secret) && !raw.text.is_empty();
        let text = if secret { "***".to_owned() } else { raw.text.clone() };
        [path.clone(), text, raw.origin.clone()]
    };
    settings.iter().map(row).collect()
}

/// A file with every setting, its default and its meaning.
#[must_use]
pub fn example() -> String {
    let mut text = String::from(
        "# Every setting of the relay with its default. Also as RELAY__SECTION__KEY in the environment.\n",
    );
    let mut section = String::new();
    for key in KEYS {
        let (place, name) = key.path.rsplit_once('.').unwrap_or(("", key.path));
        if place != section {
            place.clone_into(&mut section);
            head(&mut text, place);
        }
        let name = if name == "*" { "\"compression.type\"" } else { name };
        let value = key.default.map_or_else(|| sample(key.path), str::to_owned);
        let quoted = if matches!(key.kind, Kind::Count | Kind::Lanes) { value } else { format!("\"{value}\"") };
        let mark = if key.default.is_some() || optional(key.path) { "# " } else { "" };
        // Writing to a String cannot fail.
        write!(text, "# {}\n{mark}{name} = {quoted}\n", key.help).ok();
    }
    text
}

fn head(text: &mut String, place: &str) {
    let head = match place {
        "routes.*" => "\n[[routes]]\n".to_owned(),
        "sinks.*.properties" => "# [sinks.kafka.properties]\n".to_owned(),
        place => format!("\n[{}]\n", place.replace('*', "kafka")),
    };
    text.push_str(&head);
}

fn optional(path: &str) -> bool {
    matches!(path, "sinks.*.properties.*" | "sinks.*.url")
}

fn sample(path: &str) -> String {
    match path {
        "database.url" => "mysql://relay@127.0.0.1:3306/shop",
        "sinks.*.type" | "routes.*.sink" => "kafka",
        "sinks.*.brokers" => "127.0.0.1:9092",
        "sinks.*.url" => "amqp://guest:guest@127.0.0.1:5672/%2f",
        "sinks.*.properties.*" => "lz4",
        _ => "*",
    }
    .to_owned()
}

/// docs/configuration.md: a table of all settings.
#[must_use]
pub fn reference() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         A TOML file (`--config`, `RELAY_CONFIG`, or `relay.toml` here), then the environment (`RELAY__SECTION__KEY`), then flags; the later \
         wins. Unknown settings are errors. `relay config show` prints the effective values and where each came from; \
         `relay check` says all that is wrong at once.\n\n\
         Every secret can also be in a file: `url_file`, `password_file`; a file that everybody may read is refused.\n\n\
         | setting | default | what it means |\n|---|---|---|\n",
    );
    for key in KEYS {
        let default = key.default.map_or_else(String::new, |default| format!("`{default}`"));
        writeln!(text, "| `{}` | {default} | {} |", key.path, key.help).ok();
    }
    text
}
