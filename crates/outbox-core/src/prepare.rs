use uuid::Uuid;

use crate::{Message, store};

/// A message as SQL, returned by [`crate::Outbox::prepare`].
///
/// The statements use nothing that the session remembers: others may run between them, also of other messages.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prepared {
    /// The id under which consumers see the message.
    pub id: Uuid,
    /// Two statements (three for a sequenced message), to be run in this order in one transaction.
    pub statements: Vec<Statement>,
}

/// Messages as SQL, returned by [`crate::Outbox::prepare_all`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PreparedBatch {
    /// The ids under which consumers see the messages, in the order of the messages.
    pub ids: Vec<Uuid>,
    /// The statements, to be run in this order in one transaction.
    pub statements: Vec<Statement>,
}

/// A statement, with a value for each `?` in its text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statement {
    /// The text: one of a few constants, so that prepared statements are cached.
    pub sql: &'static str,
    /// The values, from left to right.
    pub binds: Vec<Bind>,
}

/// A value for a `?`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bind {
    /// NULL, of any type.
    Null,
    /// A string of bytes, without character set.
    Bytes(Vec<u8>),
    /// A string in UTF-8.
    Text(String),
    /// An unsigned number.
    Unsigned(u64),
    /// A signed number.
    Signed(i64),
}

impl Prepared {
    pub(crate) fn new(message: &Message) -> Self {
        let headers = store::contents::headers_to_json(&message.contents.headers);
        Self { id: message.id(), statements: store::enqueue::prepare::statements(message, headers) }
    }
}

impl From<&str> for Bind {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&[u8]> for Bind {
    fn from(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.to_owned())
    }
}

impl From<u64> for Bind {
    fn from(number: u64) -> Self {
        Self::Unsigned(number)
    }
}

impl From<i64> for Bind {
    fn from(number: i64) -> Self {
        Self::Signed(number)
    }
}

impl<T: Into<Self>> From<Option<T>> for Bind {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}
