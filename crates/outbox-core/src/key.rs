use sha2::{Digest, Sha256};

/// The number by which the relay keeps order: messages of one topic with the same key share it.
///
/// It is the first eight bytes, big endian, of `SHA-256(topic, 0x00, key)`, with 1 in place of 0,
/// because 0 means "no key, no order". In SQL, for services in other languages:
/// `CAST(CONV(LEFT(SHA2(CONCAT(topic, 0x00, message_key), 256), 16), 16, 10) AS UNSIGNED)`.
///
/// Two keys that collide are ordered together, which is harmless.
#[must_use]
pub fn key_hash(topic: &str, key: Option<&[u8]>) -> u64 {
    let Some(key) = key else { return 0 };
    let digest: [u8; 32] = Sha256::new().chain_update(topic).chain_update([0]).chain_update(key).finalize().into();
    let head = digest.first_chunk().copied().unwrap_or_default();
    u64::from_be_bytes(head).max(1)
}

#[cfg(test)]
mod tests {
    use super::key_hash;

    #[test]
    fn a_message_without_key_has_no_order() {
        assert_eq!(key_hash("orders", None), 0);
    }

    #[test]
    fn the_hash_is_the_one_that_the_table_contract_states() {
        // SELECT CONV(LEFT(SHA2(CONCAT('orders', 0x00, 'k1'), 256), 16), 16, 10)
        assert_eq!(key_hash("orders", Some(b"k1")), 134_671_423_406_879_023);
    }

    #[test]
    fn topic_and_key_do_not_run_into_each_other() {
        assert_ne!(key_hash("ab", Some(b"c")), key_hash("a", Some(b"bc")));
        assert_ne!(key_hash("orders", Some(b"")), 0);
    }
}
