#![doc = include_str!("../README.md")]

mod error;
mod key;
mod message;

pub use error::{EnqueueError, InvalidMessage};
pub use key::key_hash;
pub use message::{Event, IntoMessage, Message};
pub use sqlx;
pub use uuid::Uuid;
