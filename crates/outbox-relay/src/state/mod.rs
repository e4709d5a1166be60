//! The state that the tasks of a relay share: configuration and stop signal ([`context`]), sessions of the database,
//! claims in flight, room.

pub(crate) mod backoff;
pub mod capacity;
pub mod context;
pub mod controls;
pub(crate) mod crash;
pub mod idle;
pub mod leases;
pub mod queues;
pub mod role;
pub mod session;
pub mod stream;
