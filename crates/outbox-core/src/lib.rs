#![doc = include_str!("../README.md")]

mod enqueue;
mod error;
mod inbox;
mod key;
mod message;
mod migrate;
#[cfg(test)]
mod properties;
pub mod store;

pub use enqueue::Outbox;
pub use error::{EnqueueError, InvalidMessage};
pub use inbox::{
    Admission, Claim, Inbox, InboxError, InboxTransaction, RETENTION as INBOX_RETENTION, Sequence, WindowTooShort,
    check_window,
};
pub use key::key_hash;
pub use message::{Event, IntoMessage, Message};
pub use migrate::{MIGRATIONS, MIGRATOR, SCHEMA_VERSION, SchemaError, check_schema, migrate};
pub use sqlx;
pub use uuid::Uuid;
