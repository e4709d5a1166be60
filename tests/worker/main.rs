//! Workers in this process, against real databases. The example queue-worker covers a worker that is killed.

mod failures;
mod fence;
mod keys;
mod lanes;
mod once;
mod stage;
mod times;
