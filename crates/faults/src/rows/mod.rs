//! The table: one file a row, or a few that are alike.

mod broker_down;
mod consumer_killed;
mod database_down;
mod handlers;
mod mix;
mod relay_frozen;
mod relay_killed;
mod relay_starved;
mod rolling_restart;
mod unroutable;

use crate::row::Row;

/// All rows, in the order of the table.
#[must_use]
pub fn all() -> Vec<Row> {
    vec![
        relay_killed::one(),
        relay_killed::all(),
        relay_frozen::row(),
        rolling_restart::row(),
        relay_starved::row(),
        database_down::row(),
        handlers::cancelled(),
        handlers::deadlocks(),
        broker_down::kafka(),
        broker_down::rabbitmq(),
        unroutable::row(),
        consumer_killed::row(),
        broker_down::long(),
        mix::row(),
    ]
}
