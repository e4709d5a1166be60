//! Real servers, the load and the judge for the tests of this workspace.
//!
//! All delivery tests have the same shape. Producers write a [`ledger`] while they commit (by hand, or by a [`load`]).
//! Relays run as child processes ([`relay`]) and are killed, paused and restarted. After the last fault, the topics are
//! read to their end ([`consume`]), the tables in one snapshot ([`database`]), and one [`judge`] decides.

pub mod accounts;
pub mod chance;
pub mod clock;
pub mod consume;
pub mod database;
pub mod inbox;
pub mod judge;
pub mod ledger;
pub mod load;
pub mod program;
pub mod proxy;
pub mod relay;
pub mod servers;
mod snapshot;
pub mod strategies;
pub mod tokens;
pub mod upgrade;
pub mod usage;
