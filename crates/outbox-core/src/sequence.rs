//! Numbers for messages of sequenced keys.

use std::collections::BTreeMap;

use sqlx::MySqlConnection;

use crate::{Message, store};

/// The header that carries the number of a sequenced message, as decimal digits.
pub const SEQUENCE_HEADER: &str = "sequence";
/// The header that carries the epoch of that number, as decimal digits. The relay adds it. It is missing before the
/// first recovery.
pub const EPOCH_HEADER: &str = "sequence-epoch";
/// Most bytes of the header.
pub(crate) const HEADER_BYTES: usize = SEQUENCE_HEADER.len() + 20;

/// Gives each sequenced message the next number of its key, in the order of the messages. Keys are taken in the order
/// of their bytes, so that two batches with the same keys do not wait for each other.
pub(crate) async fn number(conn: &mut MySqlConnection, messages: &mut [Message]) -> Result<(), sqlx::Error> {
    let mut keys: BTreeMap<(String, Vec<u8>), Vec<&mut Message>> = BTreeMap::new();
    for message in messages.iter_mut().filter(|message| message.sequenced) {
        let key = message.contents.key.clone().unwrap_or_default();
        keys.entry((message.contents.topic.clone(), key)).or_default().push(message);
    }
    for ((topic, key), messages) in keys {
        let count = messages.len() as u64;
        let last = store::enqueue::sequence::take(conn, &topic, &key, count).await?;
        for (number, message) in (last.saturating_sub(count) + 1..).zip(messages) {
            message.contents.headers.push((SEQUENCE_HEADER.to_owned(), number.to_string()));
            message.sequenced = false; // from here on it is a header like the others, and counted as one
        }
    }
    Ok(())
}
