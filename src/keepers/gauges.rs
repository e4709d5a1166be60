//! Sets the gauges of the queue from the database: they are the same on every relay.

use std::{sync::Arc, time::Duration};

use outbox_core::store::stats::{self, Stats};

use crate::{
    operate::instances::{self, STATES},
    state::{context::Context, session::Session},
};

/// The pause between two counts.
const EVERY: Duration = Duration::from_secs(15);

/// Counts every 15 seconds until the relay is stopped.
pub async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    let mut wait = Duration::ZERO;
    while context.sleep(wait).await {
        wait = EVERY;
        match session.run("stats", async |db| Ok((stats::stats(db).await?, instances::list(db).await?))).await {
            Ok((stats, instances)) => {
                show(&context, stats);
                for state in STATES {
                    let number = instances.iter().filter(|it| it.state == state).count();
                    let gauge = context.metrics.queue.instances.with_label_values(&[state]);
                    gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
                }
            }
            Err(_) => session.pause().await,
        }
    }
}

fn show(context: &Context, stats: Stats) {
    let queue = &context.metrics.queue;
    let set = |state: &str, count: u64| {
        queue.messages.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
    };
    set("pending", stats.pending);
    set("leased", stats.leased);
    set("delayed", stats.delayed);
    set("dead", stats.dead);
    #[expect(clippy::cast_precision_loss, reason = "a lag in seconds needs no more than 53 bits")]
    queue.lag_seconds.set(stats.lag_micros as f64 / 1e6);
    queue.blocked_keys.set(i64::try_from(stats.blocked_keys).unwrap_or(i64::MAX));
    queue.expired_leases.set(i64::try_from(stats.expired_leases).unwrap_or(i64::MAX));
    context.alive("stats");
}
