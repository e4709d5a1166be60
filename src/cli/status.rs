//! `relay status`.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use outbox_core::store::stats::stats;
use serde_json::Value;

use super::{
    database,
    output::{self, Format, pick},
};
use crate::{
    config::Config,
    operate::{instances, status::lanes},
};

/// The pause between two prints.
const EVERY: Duration = Duration::from_secs(2);

/// How to print it.
#[derive(Debug, Args)]
pub(super) struct Status {
    /// Print it again every 2 seconds, until Ctrl-C
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    format: Format,
}

impl Status {
    /// Prints what is in the queue, and the state of each lane.
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<bool> {
        let mut connection = database::connect_to_read(config).await?;
        loop {
            let stats = stats(&mut connection).await.context("the queue cannot be counted")?;
            let lanes = lanes(&mut connection).await.context("the lanes cannot be counted")?;
            let instances = instances::list(&mut connection).await.context("the relays cannot be counted")?;
            let relays = instances.iter().filter(|it| it.state != "gone").count();
            #[expect(clippy::cast_precision_loss, reason = "a lag in seconds needs no more than 53 bits")]
            let lag = stats.lag_micros as f64 / 1e6;
            let pairs = [
                ("pending", stats.pending.into()),
                ("leased", stats.leased.into()),
                ("delayed", stats.delayed.into()),
                ("dead", stats.dead.into()),
                ("blocked_keys", stats.blocked_keys.into()),
                ("expired_leases", stats.expired_leases.into()),
                ("lag_seconds", lag.into()),
                ("relays", relays.into()),
            ];
            let columns = ["lane", "state", "pending", "delayed", "dead", "verdict"];
            let row = |lane| Ok(pick(&serde_json::to_value(lane)?, columns));
            let rows: Vec<[Value; 6]> = lanes.iter().map(row).collect::<Result<_, serde_json::Error>>()?;
            self.format.object_with_rows(&pairs, "lanes", columns, &rows)?;
            if !self.watch {
                return Ok(true);
            }
            output::text("\n")?;
            tokio::time::sleep(EVERY).await;
        }
    }
}
