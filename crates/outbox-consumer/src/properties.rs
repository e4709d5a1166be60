//! Properties of every delivery, from any sender; those of one broker are beside the code that reads its messages.
//! `PROPTEST_CASES` is the number of cases of each property.

use std::collections::BTreeSet;

use outbox_core::{Contents, SequenceNumber, Uuid, key_hash, store::contents::headers_to_json};
use proptest::{collection::vec, prelude::*};
use serde_json::{Map, Value};
use testkit::strategies::text;

use crate::{Delivery, sequence};

/// The text of an id, mostly a valid one.
pub(crate) fn id() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => any::<u128>().prop_map(|id| Uuid::from_u128(id).to_string()),
        1 => any::<u128>().prop_map(|id| Uuid::from_u128(id).simple().to_string()),
        1 => text(),
    ]
}

/// A key or a payload.
pub(crate) fn bytes() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop::option::of(vec(any::<u8>(), 0..40))
}

/// Checks the uses of a delivery before a handler sees it, and when it is dead.
pub(crate) fn look_at(delivery: &Delivery) -> Result<(), TestCaseError> {
    let names: BTreeSet<&str> = delivery.contents.headers.iter().map(|(name, _)| name.as_str()).collect();
    let kept: Map<String, Value> =
        serde_json::from_str(headers_to_json(&delivery.contents.headers).as_deref().unwrap_or("{}"))?;
    prop_assert!(kept.keys().map(String::as_str).collect::<BTreeSet<_>>() == names, "{kept:?} in place of {names:?}");
    if let Some((number, key)) = sequence::number(delivery) {
        prop_assert!((1..u64::MAX).contains(&number.number) && key.len() <= 1024);
    }
    prop_assert_eq!(
        key_hash(&delivery.contents.topic, delivery.contents.key.as_deref()) == 0,
        delivery.contents.key.is_none()
    );
    let read = delivery.json::<Value>().is_ok();
    prop_assert_eq!(
        read,
        serde_json::from_slice::<Value>(delivery.contents.payload.as_deref().unwrap_or_default()).is_ok()
    );
    let shown = format!("{delivery:?}");
    let id = format!("message {}", delivery.id);
    prop_assert!(shown.starts_with(&id));
    Ok(())
}

/// A number of a sequenced key, or another text in its place.
fn number() -> impl Strategy<Value = String> {
    prop_oneof![any::<u64>().prop_map(|number| number.to_string()), "[0-9+ -]{0,22}", text()]
}

proptest! {
    /// A number that no outbox would write counts as no number.
    #[test]
    fn a_number_is_read_where_an_outbox_could_have_written_it(
        topic in text(), key in prop::option::of(vec(any::<u8>(), 0..1100)), number in number(), other in text(),
        epoch in prop::option::of(number()),
    ) {
        let mut headers = vec![("sequence".to_owned(), number.clone()), ("sequence".to_owned(), other)];
        headers.extend(epoch.clone().map(|epoch| ("sequence-epoch".to_owned(), epoch)));
        let contents = Contents { topic: topic.clone(), key: key.clone(), headers, ..Contents::default() };
        let delivery = Delivery::new(Uuid::nil(), contents);
        let key = key.filter(|key| key.len() <= 1024 && topic.is_ascii() && topic.len() <= 249);
        let number = number.parse::<u64>().ok().filter(|number| (1..u64::MAX).contains(number));
        let epoch = epoch.map_or(Some(0), |epoch| epoch.parse().ok());
        let number = number.zip(epoch).map(|(number, epoch)| SequenceNumber { epoch, number });
        prop_assert_eq!(sequence::number(&delivery), number.zip(key.as_deref()));
        look_at(&delivery)?;
    }
}
