//! The real binary against real servers. Each test has its own database and topic, and the same judge decides all
//! tests.

mod accounts;
mod canary;
mod contract;
mod crash;
mod delivery;
mod destinations;
mod envelopes;
mod frozen;
mod hand_edited;
mod hands;
mod lanes;
mod lock_waits;
mod midway;
mod migrate;
mod network;
mod order;
mod outage;
mod queues;
mod recover;
mod rejected;
mod rows_touched;
mod schema;
mod settings;
mod stage;
mod takeover;
