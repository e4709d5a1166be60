//! The difference between a relay and a worker when they claim.

/// How a process claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessKind {
    /// A relay publishes the messages of a key in order, also those of several claims. A pass makes one claim.
    Relay,
    /// Each claim of a worker is a transaction of its own, and no two of its claims share a key. A pass makes as many
    /// as there is room for.
    Worker {
        /// Most messages of a claim. It takes this many places, however few messages it has.
        batch: usize,
    },
}

impl ProcessKind {
    /// The name of workers.
    pub const WORKER: &'static str = "worker";

    /// Returns the kind of process: for the log, heartbeats, and `outbox_head.kind`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Worker { .. } => Self::WORKER,
        }
    }

    /// Whether the claims of the process may share a key.
    #[must_use]
    pub const fn shares_keys(self) -> bool {
        matches!(self, Self::Relay)
    }

    /// Returns the most messages of a claim, if a pass has room for this many.
    pub(crate) const fn of_claim(self, most: usize) -> usize {
        match self {
            Self::Relay => most,
            Self::Worker { batch } => batch,
        }
    }

    /// Returns the fewest rows that a look asks for. The keys of the first rows may be in other claims of a worker.
    pub(crate) const fn look_rows(self) -> usize {
        match self {
            Self::Relay => 0,
            Self::Worker { .. } => 500,
        }
    }
}
