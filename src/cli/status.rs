//! `relay status`.

use anyhow::Context as _;
use outbox_core::{check_schema_to_read, store::stats::stats};

use super::{database, output::Format};
use crate::config::Config;

/// Prints what is in the queue.
pub(super) async fn run(format: Format, config: &Config) -> anyhow::Result<bool> {
    let mut connection = database::connect(config).await?;
    check_schema_to_read(&mut connection).await?;
    let stats = stats(&mut connection).await.context("the queue cannot be counted")?;
    #[expect(clippy::cast_precision_loss, reason = "a lag in seconds needs no more than 53 bits")]
    let lag = stats.lag_micros as f64 / 1e6;
    format.object(&[
        ("pending", stats.pending.into()),
        ("leased", stats.leased.into()),
        ("delayed", stats.delayed.into()),
        ("dead", stats.dead.into()),
        ("blocked_keys", stats.blocked_keys.into()),
        ("expired_leases", stats.expired_leases.into()),
        ("lag_seconds", lag.into()),
        ("relays_with_claims", stats.owners.into()),
    ])?;
    Ok(true)
}
