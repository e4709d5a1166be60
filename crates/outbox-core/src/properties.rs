//! What holds for every message and every text in the tables. `PROPTEST_CASES` is the number of cases of each property.

use proptest::{collection::vec, prelude::*};

use crate::{
    Message, key_hash,
    store::{claim::ids_from_json, read::id_list, text::Text},
};

/// Texts that are likely to be near a limit, or strange.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-zA-Z0-9._-]{0,20}",
        2 => "\\PC{0,40}",
        1 => any::<String>(),
        1 => (0..300_usize).prop_map(|length| "x".repeat(length)),
        1 => prop::sample::select(vec!["", ".", "..", "id", "type", "content-type", "a\0b", "a\r\nb", "\u{feff}"]).prop_map(str::to_owned),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let key = prop::option::of(vec(any::<u8>(), 0..1100));
    let parts = (text(), key, prop::option::of(text()), prop::option::of(text()), vec((text(), text()), 0..6));
    let payload = prop::option::of(vec(any::<u8>(), 0..50));
    (parts, payload).prop_map(|((topic, key, event_type, content_type, headers), payload)| {
        let message = match payload {
            Some(payload) => Message::new(topic, payload),
            None => Message::tombstone(topic),
        };
        let message = key.into_iter().fold(message, Message::key);
        let message = event_type.into_iter().fold(message, Message::event_type);
        let message = content_type.into_iter().fold(message, Message::content_type);
        headers.into_iter().fold(message, |message, (name, value)| message.header(name, value))
    })
}

proptest! {
    /// What is taken can be written, and its headers come back as they were.
    #[test]
    fn every_message_is_refused_or_can_be_written(message in message()) {
        match message.validate() {
            Ok(()) => {
                let json = message.headers_json()?;
                let back: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json.as_deref().unwrap_or("{}"))?;
                prop_assert!(back.values().all(serde_json::Value::is_string));
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    /// 0 means that there is no order.
    #[test]
    fn a_key_has_an_order_and_no_key_has_none(topic in text(), key in prop::option::of(vec(any::<u8>(), 0..1100))) {
        prop_assert_eq!(key_hash(&topic, key.as_deref()) == 0, key.is_none());
    }

    /// A claim's list of messages may have been edited by hand.
    #[test]
    fn a_list_of_ids_is_read_or_refused(text in prop_oneof!["[\\[\\]0-9, .eE+-]{0,30}", any::<String>()]) {
        if let Ok(ids) = ids_from_json(&text) {
            prop_assert_eq!(serde_json::from_str::<Vec<u64>>(&text)?, ids);
        }
    }

    /// The ranges and the single ids of a list name just these ids.
    #[test]
    fn a_list_of_ids_names_each_once(ids in prop::collection::btree_set(1_u64..60, 0..50)) {
        let ids: Vec<u64> = ids.into_iter().collect();
        let sql = format!("{:?}", id_list(Text::default(), "i", &ids));
        let mut named = Vec::new();
        for part in sql.split(" OR ") {
            let numbers: Vec<u64> =
                part.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
            match (part.contains("BETWEEN"), numbers.as_slice()) {
                (true, [first, last]) => named.extend(*first..=*last),
                _ => named.extend(numbers.into_iter().filter(|id| *id != 0)),
            }
        }
        named.sort_unstable();
        prop_assert_eq!(named, ids);
    }
}
