#![doc = include_str!("../README.md")]

mod enqueue;
mod error;
mod inbox;
mod key;
pub mod lease;
mod message;
mod migrate;
pub mod store;

pub use enqueue::Outbox;
pub use error::{EnqueueError, InvalidMessage};
pub use inbox::{Claim, Inbox, InboxError};
pub use key::key_hash;
pub use message::{Event, IntoMessage, Message};
pub use migrate::{MIGRATIONS, MIGRATOR, SCHEMA_VERSION, SchemaError, check_schema, migrate};
pub use sqlx;
pub use uuid::Uuid;
