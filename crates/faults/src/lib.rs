//! Breaks everything that can break under a relay, and counts the results.
//!
//! A [`row`] of the table is a fault; its cases define where it strikes. Each case gets an [`arena`]: servers, a
//! database, a topic, the standard load, relays. It starts them, strikes, and states its expectations. All cases end
//! alike: the load stops, the backlog drains, the judge decides. To add a fault: one file in [`rows`], one line in
//! [`rows::all`].

pub mod answers;
pub mod arena;
pub mod baseline;
pub mod consumer;
pub mod counts;
pub mod death;
mod ending;
pub mod ground;
pub mod program;
pub mod report;
pub mod row;
pub mod rows;
pub mod runner;
mod watch;
