//! The table: one file for each row, or for a few similar ones.

mod alerts;
mod beside;
mod between;
mod broker_down;
mod clocks;
mod commit_unanswered;
mod consumer_killed;
mod database_down;
mod database_refuses;
mod database_restored;
mod database_unreachable;
mod failover;
mod galera;
mod handlers;
mod kafka_refuses;
mod keys;
mod mix;
mod orders;
mod rabbitmq_blocks;
mod rabbitmq_refuses;
mod relay_frozen;
mod relay_killed;
mod relay_starved;
mod rolling_restart;
mod tails;
mod two_releases;
mod unroutable;

use crate::row::Row;

/// The rows of the alerts, and a case of each other row, with Prometheus beside it.
#[must_use]
pub fn alerts() -> Vec<Row> {
    let others = all().into_iter().map(beside::first_case);
    [alerts::row(), alerts::canary()].into_iter().chain(others).collect()
}

/// All other rows, in the order of the table.
#[must_use]
pub fn all() -> Vec<Row> {
    vec![
        relay_killed::one(),
        relay_killed::all(),
        relay_frozen::row(),
        rolling_restart::row(),
        tails::row(),
        relay_starved::row(),
        database_down::row(),
        database_unreachable::row(),
        commit_unanswered::row(),
        handlers::cancelled(),
        handlers::deadlocks(),
        database_refuses::row(),
        clocks::row(),
        database_restored::row(),
        failover::row(),
        galera::row(),
        broker_down::kafka(),
        kafka_refuses::row(),
        broker_down::rabbitmq(),
        rabbitmq_blocks::row(),
        unroutable::row(),
        rabbitmq_refuses::row(),
        keys::busy(),
        keys::blocked(),
        orders::row(),
        consumer_killed::row(),
        two_releases::row(),
        broker_down::long(),
        mix::row(),
    ]
}
