//! Real servers, the load and the judge for the tests of this workspace.

pub mod consume;
pub mod database;
pub mod inbox;
pub mod judge;
pub mod ledger;
pub mod load;
pub mod servers;
