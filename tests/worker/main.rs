//! Workers in this process, against real databases. What a worker does that is killed: examples/queue-worker.

mod failures;
mod fence;
mod keys;
mod once;
mod stage;
mod times;
