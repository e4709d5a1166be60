//! The table: one file a row.

mod between;
mod commit_unanswered;
mod database_refuses;
mod database_unreachable;
mod kafka_refuses;
mod rabbitmq_blocks;
mod rabbitmq_refuses;
mod relay_killed;

use crate::row::Row;

/// All rows, in the order of the table.
#[must_use]
pub fn all() -> Vec<Row> {
    vec![
        relay_killed::row(),
        database_unreachable::row(),
        commit_unanswered::row(),
        database_refuses::row(),
        kafka_refuses::row(),
        rabbitmq_blocks::row(),
        rabbitmq_refuses::row(),
    ]
}
