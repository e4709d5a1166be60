//! Functions for the derived code. Not a public API: they change with the macro.

use std::fmt::Display;

use crate::{BoxError, IntoPayload};

/// A field that can be marked with `#[event(key)]`: its text is the key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no text that could be a key",
    label = "this needs `Display`",
    note = "write `#[event(key = function)]` on the type, with a function that returns the bytes of the key"
)]
pub trait KeyField {
    /// The bytes of the key.
    fn to_key(&self) -> Vec<u8>;
}

impl<T: Display + ?Sized> KeyField for T {
    fn to_key(&self) -> Vec<u8> {
        self.to_string().into_bytes()
    }
}

/// The key that a function returns.
pub fn key_by<'a, E, K: Into<Vec<u8>>>(event: &'a E, function: impl FnOnce(&'a E) -> K) -> Vec<u8> {
    function(event).into()
}

/// The payload that a function returns.
pub fn payload_by<'a, E, P: IntoPayload>(event: &'a E, function: impl FnOnce(&'a E) -> P) -> Result<Vec<u8>, BoxError> {
    function(event).into_payload()
}
