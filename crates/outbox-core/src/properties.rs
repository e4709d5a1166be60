//! Properties of every message and every text in the tables. `PROPTEST_CASES` is the number of cases of each property.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use serde_json::{Map, Value};
use testkit::strategies::text;

use crate::{
    Message, key_hash,
    store::{
        claim::{hashes_from_bytes, hashes_to_bytes, ids_from_json, lease::ClaimLease, read::id_list},
        contents::{headers_from_json, headers_to_json},
        reason::DelayReason,
        settle::{self, Dead, Delayed, Settlement, Way},
        text::{Ids, sql},
    },
};

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

/// Messages that failed: whether an attempt was spent, how long they wait, and the broker's error.
fn failed() -> impl Strategy<Value = Vec<(u64, bool, Duration, String)>> {
    let wait = (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(seconds, nanos)| Duration::new(seconds, nanos));
    let error = prop_oneof![3 => text(), 1 => (490..510_usize).prop_map(|length| "ü".repeat(length))];
    vec((any::<u64>(), any::<bool>(), wait, error), 0..4)
}

/// The part of a text between two others.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    rest.split_once(end).map(|(part, _)| part)
}

/// The text of hexadecimal digits.
fn undigits(digits: &str) -> Option<String> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    let bytes: Option<Vec<u8>> = pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect();
    String::from_utf8(bytes?).ok()
}

/// The ids and errors of messages that failed, in the order in which a statement writes them.
fn errors(sql: &str, into: &str) -> Option<Vec<(u64, String)>> {
    let (_, statement) = sql.split_once(into)?;
    let list = between(statement, "JSON_TABLE('", "', '$[*]'")?;
    let rows: Vec<(u64, u64, u64, String, String)> = serde_json::from_str(list).ok()?;
    rows.into_iter().map(|(id, _, _, _, error)| Some((id, undigits(&error)?))).collect()
}

proptest! {
    /// A valid message can be written, and its headers are read back unchanged.
    #[test]
    fn every_message_is_refused_or_can_be_written(message in message()) {
        match message.validate() {
            Ok(()) => {
                let json = headers_to_json(&message.contents.headers);
                let back: Map<String, Value> = serde_json::from_str(json.as_deref().unwrap_or("{}"))?;
                let headers: Map<String, Value> =
                    message.contents.headers.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
                prop_assert_eq!(headers.len(), message.contents.headers.len(), "a name is there twice");
                prop_assert!(back.iter().eq(&headers), "{back:?} in place of {headers:?}");
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    /// Headers may have been edited by hand.
    #[test]
    fn headers_are_read_in_their_order_or_refused(
        pairs in prop::collection::btree_map(any::<String>(), any::<String>(), 0..8),
        other in prop_oneof!["[\\[\\]{}\":,a-c0-9 ]{0,30}", any::<String>()],
    ) {
        let headers: Vec<_> = pairs.into_iter().collect();
        prop_assert_eq!(headers_from_json(headers_to_json(&headers).as_deref()), Some(headers));
        if let Some(read) = headers_from_json(Some(&other)) {
            prop_assert!(serde_json::from_str::<Map<_, _>>(&other)?.len() == read.len());
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
            prop_assert!(ids.capacity() <= text.len().max(4), "room for more than the text can hold");
            prop_assert_eq!(serde_json::from_str::<Vec<u64>>(&text)?, ids);
        }
    }

    /// A list as a claim writes it: no claim is without messages.
    #[test]
    fn a_list_of_ids_is_read_as_it_was_written(ids in vec(any::<u64>(), 1..50)) {
        let text = sql!("[{ids}]", ids = Ids(&ids)).into_sql_str();
        prop_assert_eq!(ids_from_json(text.as_str())?, ids);
    }

    #[test]
    fn a_list_of_keys_is_read_as_it_was_written(hashes in vec(any::<u64>(), 0..50)) {
        prop_assert_eq!(hashes_from_bytes(&hashes_to_bytes(&hashes)), hashes);
    }

    /// It may have been edited by hand, too.
    #[test]
    fn whatever_a_list_of_keys_holds_each_eight_bytes_are_a_key(bytes in vec(any::<u8>(), 0..100)) {
        let hashes = hashes_from_bytes(&bytes);
        prop_assert_eq!(hashes.len(), bytes.len() / 8);
        prop_assert!(bytes.starts_with(&hashes_to_bytes(&hashes)));
    }

    /// Texts of brokers are in the statements only as digits. Read back they are unchanged; errors are cut to the width
    /// of their columns.
    #[test]
    fn what_is_settled_is_read_as_it_was_written(
        sent in vec((any::<u64>(), prop_oneof![text(), any::<String>()]), 0..5),
        delayed in failed(), dead in failed(),
    ) {
        let settlement = Settlement {
            sent: sent.clone(),
            delayed: delayed.iter().cloned().map(|(id, spent, wait, error)| {
                Delayed { id, wait: Some(wait), spent, reason: DelayReason::Unconfirmed, error }
            }).collect(),
            dead: dead.iter().cloned().map(|(id, spent, _, error)| {
                Dead { id, spent, holds_key: !spent, reason: "rejected", error }
            }).collect(),
        };
        let text = settle::settlement(&[(ClaimLease { claim_id: 1, lease_token: 2 }, &settlement)], Way::OneByOne);
        let text = text.into_sql_str();
        let sql = text.as_str();
        // Each list is noted in a second statement, of delays only those that spend an attempt.
        let is_noted = delayed.iter().any(|(_, spent, ..)| *spent);
        let lists = usize::from(!delayed.is_empty()) + usize::from(is_noted) + 2 * usize::from(!dead.is_empty());
        let statements = 8 + lists;
        prop_assert_eq!(sql.matches(';').count(), statements);

        let (ids, receipts): (Vec<u64>, Vec<String>) = sent.into_iter().unzip();
        let written = between(sql, "UTC_TIMESTAMP(6), '[", "]', 0x").unwrap_or("none");
        prop_assert_eq!(ids_from_json(&format!("[{written}]"))?, ids);
        let written = between(sql, "]', 0x", "\n").and_then(undigits).unwrap_or_default();
        prop_assert_eq!(serde_json::from_str::<Vec<String>>(&written)?, receipts);

        for (into, failed) in [("REPLACE INTO outbox_delayed", delayed), ("REPLACE INTO outbox_dead", dead)] {
            let cut = |error: String| error.chars().take(500).collect::<String>();
            let expected: Vec<_> = failed.into_iter().map(|(id, _, _, error)| (id, cut(error))).collect();
            prop_assert_eq!(errors(sql, into).unwrap_or_default(), expected);
        }
    }

    /// The ranges and the single ids of a list name exactly these ids.
    #[test]
    fn a_list_of_ids_names_each_once(ids in prop::collection::btree_set(1_u64..60, 0..50)) {
        let ids: Vec<u64> = ids.into_iter().collect();
        let sql = format!("{:?}", id_list("i", &ids));
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
