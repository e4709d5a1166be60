//! The difference between a relay and a worker when they claim.

/// How a process claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Role {
    /// The kind of process: for the log, heartbeats, and `outbox_head.kind`.
    pub name: &'static str,
    /// Whether claims of the process may share a key.
    pub shares_keys: bool,
    /// Whether a claim returns the room that its messages do not need.
    pub returns_room: bool,
    /// Fewest rows that a look asks for.
    pub look_rows: usize,
}

impl Role {
    /// A relay publishes the messages of a key in order, also those of several claims.
    pub const RELAY: Self = Self { name: "relay", shares_keys: true, returns_room: true, look_rows: 0 };
    /// Each claim of a worker is a transaction of its own. It takes a whole place, however few messages it has. Its claims are small,
    /// but the keys of the first rows may be in other claims of the worker.
    pub const WORKER: Self = Self { name: "worker", shares_keys: false, returns_room: false, look_rows: 500 };
}
