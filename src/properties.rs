//! What holds for every configuration and for every row that a relay reads. `PROPTEST_CASES` is the number of cases of each
//! property.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use proptest::{collection::vec, prelude::*};
use serde_json::Value;

use crate::{
    config::{self, AfterDead, Binding, Envelope, Inputs, OnRejected, Route},
    envelope,
    read::headers,
    route::{self, Routes},
    sink::{Destination, conformance::Draft},
};

/// A line of a configuration, more or less.
fn line() -> impl Strategy<Value = String> {
    let section = prop::sample::select(vec![
        "relay",
        "database",
        "sinks.a",
        "sinks.b.properties",
        "retry",
        "http",
        "log",
        "retention",
        "[routes]",
        "x",
        "",
    ]);
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

fn route(topics: &str, template: &str) -> Route {
    let (topics, template) = (topics.to_owned(), template.to_owned());
    let (on_rejected, after_dead) = (OnRejected::Dead, AfterDead::Skip);
    Route {
        topics,
        sink: String::new(),
        target: template.clone(),
        routing_key: template,
        on_rejected,
        after_dead,
        pipelined: false,
        envelope: Envelope::Raw,
        source: String::new(),
    }
}

proptest! {
    /// Each file is taken, or refused with at least one problem.
    #[test]
    fn every_configuration_is_taken_or_refused_with_a_reason(lines in vec(line(), 0..12)) {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("relay.toml");
        std::fs::write(&file, lines.join("\n"))?;
        if let Err(error) = config::load(&Inputs { file: Some(file), ..Inputs::default() }) {
            prop_assert!(!error.0.is_empty());
        }
    }

    /// The same for variables and flags.
    #[test]
    fn every_variable_is_taken_or_refused_with_a_reason(
        variables in vec(("(RELAY__[A-Z_]{0,30}|\\PC{0,20})", any::<String>()), 0..5),
        flags in vec(("[a-z_.0-9]{0,20}", any::<String>()), 0..3),
    ) {
        let flags = flags.into_iter().map(|(key, value)| ("--set".to_owned(), key, value)).collect();
        if let Err(error) = config::load(&Inputs { variables, flags, ..Inputs::default() }) {
            prop_assert!(!error.0.is_empty());
        }
    }

    /// Headers may have been edited by hand.
    #[test]
    fn headers_are_read_in_their_order_or_refused(
        pairs in prop::collection::btree_map(any::<String>(), any::<String>(), 0..8),
        other in prop_oneof!["[\\[\\]{}\":,a-c0-9 ]{0,30}", any::<String>()],
    ) {
        let json = serde_json::to_string(&pairs)?;
        let expected: Vec<_> = pairs.into_iter().collect();
        prop_assert_eq!(headers(Some(&json))?, expected);
        if let Ok(read) = headers(Some(&other)) {
            prop_assert!(serde_json::from_str::<serde_json::Map<_, _>>(&other)?.len() == read.len());
        }
    }

    /// What a message holds is put in once, and is not read as a template again.
    #[test]
    fn every_message_is_routed_or_is_not(
        topic in any::<String>(), pattern in "[a-c*]{0,6}", template in "[a-z{}]{0,20}|\\{topic\\}|\\{key\\}x",
        key in prop::option::of(vec(any::<u8>(), 0..40)), lane in any::<u16>(),
    ) {
        let found = Routes::new(&[route(&pattern, &template)]).resolve(&topic, None, key.as_deref(), lane);
        prop_assert_eq!(found.is_ok(), route::matches(&pattern, &topic));
        if let (Ok(found), "{topic}") = (found, template.as_str()) {
            prop_assert_eq!(&found.destination.target, &topic);
        }
    }

    /// What a payload is and what it is said to be need not go together.
    #[test]
    fn every_payload_is_in_an_event_as_it_was_or_is_refused(
        payload in prop_oneof![
            vec(any::<u8>(), 0..40),
            prop_oneof!["[\\[\\]{}\":,a-c0-9. ]{0,12}", any::<String>()].prop_map(String::into_bytes),
        ],
        content_type in prop::option::of(prop::sample::select(vec![
            "application/json", "text/plain", "text/xml; charset=latin1", "image/png", "x/y+json;a=b", "",
        ])),
    ) {
        let destination = Destination { sink: "s".into(), target: "t".into(), routing_key: String::new() };
        let mut message = Draft::new(&Arc::new(destination), payload.clone()).build();
        message.content_type = content_type.map(str::to_owned);
        if envelope::wrap(&mut message, Envelope::CloudEventsJson(Binding::Kafka), "/").is_ok() {
            let event: Value = serde_json::from_slice(&message.payload.unwrap_or_default())?;
            prop_assert!(event.get("data").is_some() != event.get("data_base64").is_some());
            if let Some(text) = event.get("data_base64").and_then(Value::as_str) {
                prop_assert_eq!(BASE64.decode(text)?, payload);
            }
        }
    }
}
