//! The real binary against real servers. Each test has a database and a topic of its own, and one judge decides them all.

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
