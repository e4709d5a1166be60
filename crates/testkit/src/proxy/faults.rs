//! The faults of a proxy.

use std::{fmt, sync::Arc, time::Duration};

use rand::{RngExt as _, rngs::StdRng};

use crate::chance;

/// One of the two ways through a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Replies.
    ToClient,
}

impl Direction {
    /// Both ways.
    pub const BOTH: [Self; 2] = [Self::ToServer, Self::ToClient];

    pub(super) fn opposite(self) -> Self {
        match self {
            Self::ToServer => Self::ToClient,
            Self::ToClient => Self::ToServer,
        }
    }
}

/// The place at which a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cut {
    /// After this number of bytes.
    After(u64),
    /// After a random number of bytes for each connection.
    Within {
        /// The largest number of bytes.
        bytes: u64,
        /// The same seed gives the n-th connection the same number.
        seed: u64,
    },
    /// Between two packets, as the proxy gets them.
    Border {
        /// The probability for each packet to be the last one.
        chance: f64,
        /// The same seed gives the n-th connection the same packet.
        seed: u64,
    },
}

/// Whether a fault is meant for the reply to this request.
pub(super) type Meant = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// All active faults.
#[derive(Clone, Default)]
pub(super) struct Faults {
    to_server: Way,
    to_client: Way,
    /// The number of resets of all connections.
    pub(super) resets: u64,
    replies: Option<(u64, Meant)>,
    /// The last request with a reply.
    last: Option<Meant>,
    changes: u64,
}

/// The faults of one direction.
#[derive(Debug, Clone, Default)]
pub(super) struct Way {
    pub(super) latency: Duration,
    /// The bytes that get through in a second.
    pub(super) rate: Option<u32>,
    pub(super) closed: bool,
    /// The cut with its number, so that a connection notices a new cut.
    cut: Option<(u64, Cut)>,
}

impl Faults {
    pub(super) fn way(&self, direction: Direction) -> &Way {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }

    pub(super) fn way_mut(&mut self, direction: Direction) -> &mut Way {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }

    pub(super) fn cut(&mut self, direction: Direction, cut: Option<Cut>) {
        self.changes += 1;
        let number = self.changes;
        self.way_mut(direction).cut = cut.map(|cut| (number, cut));
    }

    pub(super) fn cut_replies(&mut self, times: u64, meant: Meant) {
        self.replies = (times > 0).then_some((times, meant));
    }

    /// Whether the reply to this request is to be cut; if so, one cut fewer remains.
    pub(super) fn takes_reply_of(&mut self, request: &[u8]) -> bool {
        let Some((times, meant)) = &mut self.replies else { return false };
        if !meant(request) {
            return false;
        }
        *times -= 1;
        if *times == 0 {
            self.replies = None;
        }
        true
    }

    pub(super) fn close_after(&mut self, meant: Meant) {
        self.last = Some(meant);
    }

    /// Closes the way to the client if this is the last request with a reply.
    pub(super) fn close_if_last(&mut self, request: &[u8]) {
        if self.last.as_ref().is_some_and(|meant| meant(request)) {
            (self.to_client.closed, self.last) = (true, None);
        }
    }

    pub(super) fn heal(&mut self) {
        *self = Self { resets: self.resets, changes: self.changes, ..Self::default() };
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} to the server, {:?} to the client", self.to_server, self.to_client)
    }
}

impl Way {
    /// Returns the time that this number of bytes takes.
    pub(super) fn time_of(&self, bytes: usize) -> Duration {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs(1) * bytes / rate.max(1))
    }
}

/// One connection's view of a cut.
#[derive(Debug, Default)]
pub(super) struct Limit {
    cut: u64,
    left: Left,
}

#[derive(Debug, Default)]
enum Left {
    #[default]
    Everything,
    Bytes(u64),
    Packets(Box<StdRng>, f64),
}

impl Limit {
    /// The number of a packet's bytes that get through before the cut. `None` if all get through and there is no cut.
    pub(super) fn strike(&mut self, way: &Way, connection: u64, packet: usize) -> Option<usize> {
        let number = way.cut.map_or(0, |(number, _)| number);
        if number != self.cut {
            *self = Self { cut: number, left: way.cut.map_or(Left::Everything, |(_, cut)| Left::of(cut, connection)) };
        }
        match &mut self.left {
            Left::Everything => None,
            Left::Packets(random, chance) => random.random_bool(*chance).then_some(packet),
            Left::Bytes(left) => {
                let through = usize::try_from(*left).unwrap_or(usize::MAX).min(packet);
                *left -= through as u64;
                (*left == 0).then_some(through)
            }
        }
    }
}

impl Left {
    fn of(cut: Cut, connection: u64) -> Self {
        let random = |seed: u64| chance::random(seed.wrapping_mul(1_000_003).wrapping_add(connection));
        match cut {
            Cut::After(bytes) => Self::Bytes(bytes),
            Cut::Within { bytes, seed } => Self::Bytes(random(seed).random_range(0..=bytes)),
            Cut::Border { chance, seed } => Self::Packets(Box::new(random(seed)), chance),
        }
    }
}
