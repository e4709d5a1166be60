//! The names of a message.

use std::str::FromStr;

use outbox_core::{
    Uuid,
    sqlx::{self, MySqlConnection},
    store::operate::find,
};

/// A message as its consumers know it, or as the tables do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// `outbox_messages.message_id`
    Uuid(Uuid),
    /// `outbox_messages.id`
    Number(u64),
}

impl FromStr for Reference {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text.parse(), text.parse()) {
            (Ok(number), _) => Ok(Self::Number(number)),
            (_, Ok(uuid)) => Ok(Self::Uuid(uuid)),
            _ => Err("give a UUID, or a number of outbox_messages.id"),
        }
    }
}

impl Reference {
    /// Returns the number in the tables; `None` if no message has this id.
    pub(in crate::operate) async fn number(self, db: &mut MySqlConnection) -> Result<Option<u64>, sqlx::Error> {
        match self {
            Self::Number(id) => Ok(Some(id)),
            Self::Uuid(message_id) => find::number(db, message_id).await,
        }
    }
}
