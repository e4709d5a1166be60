//! `relay status`.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use async_trait::async_trait;
use clap::Args;
use outbox_core::{sqlx::MySqlConnection, store::operate::locked};
use outbox_relay::operate::{
    instances::{self, InstanceState},
    status::{Judged, judged, verdict},
};
use serde_json::{Value, json};

use super::{Answering, Operation};
use crate::cli::output::{self, Format};

/// The pause between two prints.
const EVERY: Duration = Duration::from_secs(2);

/// How to print it.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Print it again every 2 seconds, until Ctrl-C
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    format: Format,
}

#[async_trait]
impl Operation for Status {
    async fn answer(&self, db: &mut MySqlConnection, _: &Answering<'_>) -> anyhow::Result<Value> {
        let judged = judged(db).await.context("the queue cannot be counted")?;
        let mut verdict = verdict(&judged);
        // One that lets this account read.
        if let Some(lock) = locked::find(db).await.context("the locks of tables cannot be found")? {
            verdict.extend([" Relays wait: ", &lock.to_string(), "."]);
        }
        let Judged { stats, lanes, instances } = judged;
        let lanes: Vec<_> = lanes.into_iter().map(|(_, status)| status).collect();
        #[expect(clippy::cast_precision_loss, reason = "a lag in seconds needs no more than 53 bits")]
        let seconds = |(cause, micros): (&'static str, u64)| (cause, (micros / 1000) as f64 / 1e3);
        let lags: BTreeMap<_, _> = stats.lags.all().into_iter().map(seconds).collect();
        Ok(json!({
            "verdict": verdict,
            "pending": stats.pending,
            "leased": stats.leased,
            "delayed": stats.delayed,
            "dead": stats.dead,
            "blocked_keys": stats.blocked_keys,
            "expired_leases": stats.expired_leases,
            "lag_seconds": lags.get("due"),
            "lag_seconds_by_cause": lags,
            "relays": instances.iter().filter(|it| it.state != InstanceState::Gone).count(),
            "sinks_down": instances::sinks_down(&instances),
            "lanes": lanes,
        }))
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        let mut shown = answer.clone();
        if let Some(lags) = shown.get_mut("lag_seconds_by_cause").and_then(Value::as_object_mut) {
            lags.retain(|_, lag| lag.as_f64() > Some(0.0));
        }
        let answer = if self.format.is_json() { answer } else { &shown };
        self.format.object_with_list(answer, "lanes", ["lane", "state", "pending", "delayed", "dead", "verdict"])?;
        if self.watch {
            output::text("\n")?;
        }
        Ok(())
    }

    fn repeats(&self) -> Option<Duration> {
        self.watch.then_some(EVERY)
    }
}
