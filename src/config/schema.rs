//! The JSON schema of the configuration file, for editors.

use outbox_relay::settings::value::ValueKind;
use serde_json::{Map, Value, json};

use super::{
    example::keys_of,
    keys::{ConfigKey, SECTIONS, Unset},
};

/// Returns the schema. It demands no key, because each can also be given as a variable or a flag.
#[must_use]
pub fn schema() -> Value {
    let section = |(pattern, help): &(&str, &str)| {
        let name = pattern.trim_end_matches(".*");
        let mut keys = Map::new();
        for key in keys_of(pattern) {
            add(&mut keys, key);
        }
        let keys = json!({"type": "object", "properties": keys, "additionalProperties": false});
        let mut section = match name {
            "sinks" => json!({"type": "object", "additionalProperties": keys}),
            "routes" => json!({"type": "array", "items": keys}),
            _ => keys,
        };
        if let Some(section) = section.as_object_mut() {
            section.insert("description".to_owned(), (*help).into());
        }
        (name.to_owned(), section)
    };
    let sections: Map<_, _> = SECTIONS.iter().map(section).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The configuration of the relay",
        "type": "object",
        "properties": sections,
        "additionalProperties": false,
    })
}

/// Adds a key. What it means to several types of sink stands in one description.
fn add(keys: &mut Map<String, Value>, key: &ConfigKey) {
    let (name, mut value) = property(key);
    let before =
        keys.get(&name).and_then(|known| known["description"].as_str()).map(|help| format!("{help} Or: {}", key.help));
    if let (Some(help), Some(value)) = (before, value.as_object_mut()) {
        value.insert("description".to_owned(), help.into());
    }
    keys.insert(name, value);
}

fn property(key: &ConfigKey) -> (String, Value) {
    let mut value =
        if key.is_map() { json!({"type": "object", "additionalProperties": of(key.kind)}) } else { of(key.kind) };
    if let Some(value) = value.as_object_mut() {
        value.insert("description".to_owned(), key.help.into());
        if let Unset::Default(text) = key.unset {
            value.insert("default".to_owned(), default(key.kind, text));
        }
    }
    (if key.is_map() { "properties" } else { key.name() }.to_owned(), value)
}

/// The values of a kind. A text that does not read as an address or as a filter is found by the relay alone.
fn of(kind: ValueKind) -> Value {
    const TIME: &str = "^[0-9]+(ms|s|m|h|d)$";
    match kind {
        ValueKind::Text | ValueKind::Secret | ValueKind::File | ValueKind::Address | ValueKind::Level => {
            json!({"type": "string"})
        }
        ValueKind::Property => json!({"type": ["string", "number", "boolean"]}),
        ValueKind::Choice(words) => json!({"enum": words}),
        ValueKind::Switch => json!({"type": "boolean"}),
        ValueKind::Count(min, max) => json!({"type": "integer", "minimum": min, "maximum": max}),
        ValueKind::Duration => json!({"type": "string", "pattern": TIME}),
        ValueKind::Retention => json!({"anyOf": [{"type": "string", "pattern": TIME}, {"enum": [0, "0"]}]}),
        ValueKind::Size => json!({"type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB)$"}),
        ValueKind::Lanes => json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": u16::MAX}}),
    }
}

fn default(kind: ValueKind, text: &str) -> Value {
    // Numbers, switches and lists read as JSON.
    let value = match kind {
        ValueKind::Count(..) | ValueKind::Switch | ValueKind::Lanes => serde_json::from_str(text).ok(),
        _ => None,
    };
    value.unwrap_or_else(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::keys;

    #[test]
    fn every_key_is_in_the_schema() {
        let schema = schema();
        let mut found = 0;
        for key in keys() {
            let path = key.path.replace("sinks.*.", "sinks/additionalProperties/properties/");
            let path = path.replace("routes.*.", "routes/items/properties/").replace("/properties.*", "/properties");
            let path = if path.contains('/') { path } else { path.replace('.', "/properties/") };
            let value = schema.pointer(&format!("/properties/{path}")).unwrap_or(&Value::Null);
            assert!(value["description"].as_str().is_some_and(|help| help.contains(key.help)), "{}", key.path);
            found += 1;
        }
        assert!(found > 40, "{found}");
        let relay = |key: &str| schema["properties"]["relay"]["properties"][key].clone();
        assert_eq!((relay("lanes")["default"].clone(), relay("lease")["default"].clone()), (json!([]), json!("30s")));
        assert_eq!((relay("readers")["default"].clone(), relay("readers")["maximum"].clone()), (json!(2), json!(64)));
    }
}
