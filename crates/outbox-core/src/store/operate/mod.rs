//! The statements behind the questions and orders of operators, and behind the jobs, counts and purges of relays.

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
