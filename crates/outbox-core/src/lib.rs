#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backlog;
mod contents;
#[doc(hidden)]
pub mod derived;
mod enqueue;
mod error;
mod event;
mod inbox;
mod key;
pub mod lease;
mod message;
mod migrate;
#[cfg(feature = "metrics")]
mod observe;
mod pool;
mod prepare;
#[cfg(test)]
mod properties;
mod sequence;
#[doc(hidden)]
pub mod store;
#[cfg(feature = "test")]
pub mod test;
mod trace;

pub use backlog::OnBacklog;
pub use contents::Contents;
pub use enqueue::Outbox;
pub use error::{BoxError, EnqueueError, InvalidMessage};
#[cfg(feature = "json")]
pub use event::to_json;
pub use event::{Event, IntoMessage, IntoPayload};
pub use inbox::{
    Claim, Inbox, InboxError, InboxPurge, InboxTransaction, Purged, RETENTION as INBOX_RETENTION, Sequence,
    SequenceNumber, WindowTooShort, check_window,
};
pub use key::key_hash;
pub use message::Message;
#[cfg(feature = "test")]
#[doc(hidden)]
pub use migrate::migrate_with;
pub use migrate::{
    Due, MIGRATIONS, MIGRATOR, MigrateError, SCHEMA_VERSION, SchemaError, baseline, check_schema, check_schema_to_read,
    migrate, migration_script, migrations_due,
};
#[cfg(feature = "derive")]
pub use outbox_derive::Event;
pub use pool::{cancel_safe, check_returned};
pub use prepare::{Bind, Prepared, PreparedBatch, Statement};
pub use sequence::{EPOCH_HEADER, SEQUENCE_HEADER};
pub use sqlx;
pub use store::refusal::is_passing;
pub use uuid::Uuid;

/// The header of a message that an operator has sent again: the number of the job, see `relay replay`.
pub const REPLAY_HEADER: &str = "outbox-replay";

/// The header in which the relay sends the topic of the outbox, on Kafka and on RabbitMQ. A route gives the destination
/// any name.
pub const TOPIC_HEADER: &str = "outbox-topic";
