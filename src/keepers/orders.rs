//! Follows the orders of operators: tells them by heartbeats that this process runs, reads the pauses, and carries out jobs. All
//! relays look for jobs, and a compare-and-set gives each batch to one of them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::{
    sqlx,
    store::{
        controls,
        instances::{self, Beat},
    },
};

use crate::{
    operate::jobs::{Progress, step},
    state::{context::Context, controls::Target, session::Session},
};

/// Pause between two looks for pauses. With the time of a look it is below the second within which a pause holds.
const PAUSES: Duration = Duration::from_millis(500);
/// Pause between two heartbeats.
const BEATS: Duration = Duration::from_secs(10);
/// Pause between two looks for a job.
const JOBS: Duration = Duration::from_secs(2);
/// Shortest pause between two batches of a job.
const REST: Duration = Duration::from_millis(20);

/// Follows orders until the relay is stopped.
pub async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    // Relays that were started together do not look together.
    let (mut pauses_at, mut jobs_at) = (Instant::now(), Instant::now() + JOBS.mul_f64(rand::random()));
    let mut beat_at = Instant::now();
    while context.sleep(pauses_at.min(jobs_at).saturating_duration_since(Instant::now())).await {
        if read_pauses(&context, &mut session).await.is_err() {
            session.pause().await;
        }
        pauses_at = Instant::now() + PAUSES;
        if beat_at <= Instant::now() {
            beat(&context, &mut session).await;
            beat_at = Instant::now() + BEATS;
        }
        if jobs_at <= Instant::now() {
            jobs_at = Instant::now() + job(&context, &mut session).await;
        }
        context.alive("orders");
    }
    // If it fails, the heartbeat is forgotten after a day.
    session.run("beat", async |db| instances::leave(db, &context.owner).await).await.ok();
}

/// Writes a heartbeat. The next one follows in any case: a failure was logged.
async fn beat(context: &Context, session: &mut Session) {
    let relay = &context.config.relay;
    let lanes = serde_json::to_string(&relay.lanes).unwrap_or_default();
    let sinks = serde_json::to_string(&context.sinks()).unwrap_or_default();
    // A process may be switched off once it holds no message: none that is not read yet, and none that is sent and not settled.
    let tenures = context.leases.all();
    let held: usize = tenures.iter().filter(|tenure| !tenure.is_abandoned()).map(|tenure| tenure.ids.len()).sum();
    let beat = Beat {
        instance: &context.owner,
        role: context.role.name(),
        version: env!("CARGO_PKG_VERSION"),
        lanes: &lanes,
        sinks: &sinks,
        in_flight: u32::try_from(held).unwrap_or(u32::MAX),
    };
    session.run("beat", async |db| instances::beat(db, &beat).await).await.ok();
}

/// Reads the pauses. A process without the privilege (GRANT files of an earlier release) assumes that there is none. Messages in
/// flight are finished.
async fn read_pauses(context: &Context, session: &mut Session) -> Result<(), sqlx::Error> {
    let read = session.run("controls", async |db| controls::paused(db).await).await;
    let rows = match &read {
        Ok(rows) => rows.as_slice(),
        Err(error) if error.as_database_error().is_some() && !context.controls.are_known() => &[],
        Err(_) => return read.map(drop),
    };
    let (begun, ended) = context.controls.set(rows, Instant::now());
    for (targets, is_paused) in [(begun, true), (ended, false)] {
        for (kind, name) in targets.iter().map(Target::names) {
            tracing::warn!(kind, name, "{}", if is_paused { "paused by an operator" } else { "not paused any more" });
            context.metrics.paused.with_label_values(&[kind, name.as_str()]).set(i64::from(is_paused));
        }
    }
    read.map(drop)
}

/// Carries out a batch of a job; returns the pause before the next look for one.
async fn job(context: &Context, session: &mut Session) -> Duration {
    let kept = context.config.retention.sent;
    match session.run("job", async |db| step(db, kept).await).await {
        Ok(Some(Progress { job_id, messages, pause, is_last })) => {
            if messages > 0 {
                context.nudge.notify_waiters();
            }
            if is_last {
                tracing::info!(job_id, "a job has ended");
            }
            pause.max(REST)
        }
        Ok(None) => JOBS,
        Err(_) => {
            session.pause().await;
            JOBS
        }
    }
}
