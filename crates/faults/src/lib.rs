//! Breaks everything that can break under a relay, and counts what came of it.
//!
//! A [`row`] of the table is a fault; its cases say where it strikes. Each case gets an [`arena`]: servers, a database, a topic,
//! the standard load, relays. It starts them, strikes, and says what it expects; the ending is the same for all: the load stops,
//! the backlog drains, the judge decides. To add a fault: one file in [`rows`], one line in [`rows::all`].

pub mod arena;
pub mod baseline;
pub mod consumer;
pub mod counts;
mod ending;
pub mod ground;
pub mod program;
pub mod report;
pub mod row;
pub mod rows;
pub mod runner;
