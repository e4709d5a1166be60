//! Properties of every configuration. `PROPTEST_CASES` is the number of cases of each property.

use proptest::{collection::vec, prelude::*};

use super::{Inputs, load, schema};

/// Generates a line that resembles a configuration.
fn line() -> impl Strategy<Value = String> {
    let sections = schema()["properties"].as_object().map(|known| known.keys().cloned().collect::<Vec<_>>());
    let more = ["sinks.a", "sinks.b.properties", "[routes]", "x", ""].map(str::to_owned);
    let sections = sections.unwrap_or_default().into_iter().chain(more);
    let section = prop::sample::select(sections.collect::<Vec<_>>());
    let key = prop::sample::select(vec![
        "url",
        "type",
        "brokers",
        "lease",
        "lanes",
        "claim_bytes",
        "listen",
        "topics",
        "sink",
        "topic",
        "exchange",
        "password_file",
        "sent",
        "level",
        "a.b",
        "\"linger.ms\"",
    ]);
    let value = prop_oneof![
        prop::sample::select(vec![
            "\"30s\"",
            "0",
            "-1",
            "true",
            "[]",
            "{}",
            "\"4MiB\"",
            "\"kafka\"",
            "\"rabbitmq\"",
            "\"*\"",
            "\"amqp://a:b@c:1/d\"",
            "\"mysql://a:b@c:99999/d\"",
            "1e999",
            "\"18446744073709551616s\"",
            "\"{key}{\"",
            "1979-05-27",
            "\"off\"",
        ])
        .prop_map(str::to_owned),
        any::<String>().prop_map(|text| format!("{text:?}")),
        any::<i64>().prop_map(|number| number.to_string()),
    ];
    prop_oneof![
        2 => section.prop_map(|name| format!("[{name}]")),
        6 => (key, value).prop_map(|(key, value)| format!("{key} = {value}")),
        1 => any::<String>(),
    ]
}

proptest! {
    /// Each file is taken, or refused with at least one problem.
    #[test]
    fn every_configuration_is_taken_or_refused_with_a_reason(lines in vec(line(), 0..12)) {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("relay.toml");
        std::fs::write(&file, lines.join("\n"))?;
        if let Err(error) = load(&Inputs { file: Some(file), ..Inputs::default() }) {
            prop_assert!(!error.0.is_empty());
        }
    }

    /// The same with variables and flags.
    #[test]
    fn every_variable_is_taken_or_refused_with_a_reason(
        variables in vec(("(RELAY__[A-Z_]{0,30}|\\PC{0,20})", any::<String>()), 0..5),
        flags in vec(("[a-z_.0-9]{0,20}", any::<String>()), 0..3),
    ) {
        let flags = flags.into_iter().map(|(key, value)| ("--set".to_owned(), key, value)).collect();
        if let Err(error) = load(&Inputs { variables, flags, ..Inputs::default() }) {
            prop_assert!(!error.0.is_empty());
        }
    }
}
