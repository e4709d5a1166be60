#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(feature = "kafka", feature = "rabbitmq")),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        reason = "without a broker only what a handler is made of is used, by workers; with one, not what the other \
                  one needs"
    )
)]

mod crash;
mod crew;
mod delivery;
mod error;
mod failure;
mod handler;
#[cfg(feature = "kafka")]
pub mod kafka;
mod keys;
mod lines;
mod metrics;
mod options;
mod process;
#[cfg(test)]
mod properties;
mod purge;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
mod retries;
mod retry;
mod retry_dead;
mod router;
mod sequence;
mod starts;
mod stop;
mod unfinished;

pub use delivery::Delivery;
pub use error::ConsumerError;
pub use failure::{BoxError, Failure};
pub use handler::{Handler, handler_fn, in_span};
pub use metrics::Metrics;
pub use outbox_core;
pub use prometheus;
pub use retry::Retry;
pub use retry_dead::{Retried, retry_dead};
pub use router::{Router, Unknown};
pub use sequence::SequencePolicy;
pub use stop::stop_signal;
