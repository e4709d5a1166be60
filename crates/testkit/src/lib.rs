//! Real servers, the load and the judge for the tests of this workspace.
//!
//! A delivery test has always the same shape: producers write a [`ledger`] while they commit (by hand, or by a [`load`]);
//! relays run as child processes ([`relay`]) and are killed, paused and restarted; when the last fault is over the topics
//! are read to their end ([`consume`]), the tables are read in one snapshot ([`database`]), and one [`judge`] decides.

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
pub mod upgrade;
pub mod usage;
