//! What operators ask and order, and what the keepers of a relay do for them.

pub mod audit;
pub mod controls;
pub mod doctor;
pub mod find;
pub mod instances;
pub mod jobs;
pub mod locked;
pub mod messages;
pub mod purge;
pub mod replay;
pub mod stats;
pub mod unsent;
