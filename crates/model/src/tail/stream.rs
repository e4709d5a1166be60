//! A stream of the binary log, with the state of the lane at its position.

use super::database::Kind;
use crate::ids::Ids;

/// An event of the log. A transaction's events follow its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Entry {
    /// A service has inserted a message.
    Inserted(u64),
    /// A prepared transaction is committed. Its rows came with the preparation, which may be any time ago.
    PreparedCommitted,
    /// A delayed message is pending again.
    PutBack(u64),
    /// A tail was opened.
    Begun { token: u64 },
    /// A tail was closed, or has ended without a settlement.
    Shut { token: u64 },
    /// A tail was renewed: the log shows its row removed, and inserted again.
    Renewed { claim: u64, token: u64 },
    /// A claim was settled: rows left the pending ones, of which some are delayed now. The claim has this successor.
    Settled { claim: u64, removed: Ids, delayed: Ids, successor: Option<Successor> },
}

/// The claim that follows a settled one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Successor {
    pub claim: u64,
    pub kind: Kind,
    pub mark: u64,
}

/// Whether the log has shown the own tail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Phase {
    /// Not yet: earlier events say nothing.
    #[default]
    Before,
    /// It stands open.
    Open,
    /// It is closed.
    Over,
}

/// A stream of the log, and the state of the lane at its position.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Stream {
    /// The number of events that were applied.
    pub at: usize,
    pub phase: Phase,
    /// Whether the rows that were there before have been read.
    pub is_read: bool,
    /// The pending rows, and those that were taken. A settled row stays until the log shows its removal.
    pub known: Ids,
    /// The delayed rows.
    pub held: Ids,
    /// Failures that were settled, and whose settlement the log has not shown.
    pub failed: Ids,
    /// The last own claim that was renewed, where that passes for its end.
    pub renewed: u64,
    /// Rows above the mark.
    pub late: Ids,
}
