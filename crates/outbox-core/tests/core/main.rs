//! Tests of the library against real servers.

mod admit;
mod assertions;
mod attempts;
mod backlog;
mod batch;
mod counters;
mod drain;
mod enqueue;
mod floor;
mod inbox;
mod inbox_sequence;
mod invalid;
mod lease;
mod lease_stress;
mod metrics;
mod migrate;
mod pool;
mod prepare;
mod protocol;
mod purge;
mod recover;
mod schedule;
mod sequence;
mod stats;
mod trace;
mod upgrade;
