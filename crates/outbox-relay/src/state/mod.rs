//! The state that the tasks of a relay share: configuration and stop signal (`context`), sessions of the database,
//! claims in flight, room.

pub(crate) mod backoff;
pub(crate) mod capacity;
pub(crate) mod context;
pub mod controls;
pub(crate) mod crash;
pub(crate) mod idle;
pub mod leases;
pub(crate) mod queues;
pub(crate) mod role;
pub mod session;
pub(crate) mod stream;
