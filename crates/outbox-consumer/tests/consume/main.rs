//! Consumers on real brokers and a real database: each message has one effect, in the order of its key.

mod anew;
mod backpressure;
mod crashes;
mod dead;
mod effects;
mod forgotten;
mod lines;
mod outage;
mod panics;
mod passing;
mod purge;
mod quiet;
mod rebalance;
mod router;
mod sequence;
mod spans;
mod stage;
mod stop;
