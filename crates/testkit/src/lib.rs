//! Real servers, the load and the judge for the tests of this workspace.

pub mod ledger;
pub mod servers;
