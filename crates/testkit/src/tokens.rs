//! The file of `api.tokens_file`.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// The lines for these names and roles. A token is the name itself.
#[must_use]
pub fn token_lines(people: &[(&str, &str)]) -> String {
    people.iter().flat_map(|(name, role)| [*name, " ", *role, " ", &sha256(name), "\n"].map(str::to_owned)).collect()
}

/// The SHA-256 of these bytes, in hexadecimal digits.
pub(crate) fn sha256(bytes: impl AsRef<[u8]>) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}
