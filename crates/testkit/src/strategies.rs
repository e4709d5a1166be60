//! Strategies for the property tests of several crates.

use proptest::prelude::*;

/// Texts near a limit, strange ones, and texts with a meaning as a header's name.
pub fn text() -> impl Strategy<Value = String> {
    let strange = vec!["", ".", "..", "a\0b", "a\r\nb", "\u{feff}"];
    let meant = vec![
        "id",
        "type",
        "content-type",
        "ce_id",
        "ce_type",
        "specversion",
        "source",
        "data",
        "eventType",
        "sequence",
        "outbox-topic",
        "x-message-key",
        "x-tombstone",
    ];
    prop_oneof![
        4 => "[a-zA-Z0-9._-]{0,20}",
        2 => "\\PC{0,40}",
        1 => any::<String>(),
        1 => (0..300_usize).prop_map(|length| "x".repeat(length)),
        1 => prop::sample::select(strange).prop_map(str::to_owned),
        1 => prop::sample::select(meant).prop_map(str::to_owned),
    ]
}
