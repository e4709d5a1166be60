use outbox_core::{check_schema, store::stats};

use super::{Format, migrate::connect, table};
use crate::config::Config;

pub(super) async fn status(config: &Config, format: Format) -> anyhow::Result<()> {
    let mut db = connect(config).await?;
    check_schema(&mut db).await?;
    let stats = stats::stats(&mut db).await?;
    #[expect(clippy::cast_precision_loss, reason = "seconds for people")]
    let lag = format!("{:.3}", stats.lag_micros as f64 / 1e6);
    let rows = [
        ["pending", &stats.pending.to_string(), "unsent and due, claimed ones included"],
        ["leased", &stats.leased.to_string(), "of these, claimed by a relay"],
        ["delayed", &stats.delayed.to_string(), "waiting for a time"],
        ["dead", &stats.dead.to_string(), "given up"],
        ["blocked_keys", &stats.blocked_keys.to_string(), "keys held back by a message that waits or is dead"],
        ["expired_leases", &stats.expired_leases.to_string(), "claims of dead relays that nobody has taken over"],
        ["relays", &stats.owners.to_string(), "owners with a live claim"],
        ["lag_seconds", &lag, "age of the oldest message that is due"],
    ];
    table::print(["what", "value", "meaning"], &rows.map(|row| row.map(str::to_owned)), format)
}
