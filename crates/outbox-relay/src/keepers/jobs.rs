//! Tells operators by heartbeats that this process runs, and carries out their jobs. All relays look for jobs, and a
//! compare-and-set gives each batch to one of them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::store::operate::{
    find,
    instances::{self, Beat},
};

use crate::{
    operate::jobs::{JobProgress, step},
    sink::Receipt,
    state::{context::Context, session::Session},
};

/// Pause between two heartbeats.
const BEATS: Duration = Duration::from_secs(10);
/// Most destinations for which the receipts are searched after a heartbeat.
const QUESTIONS: usize = 10;
/// Pause until the first heartbeat is tried again.
const SOON: Duration = Duration::from_millis(100);
/// Pause between two looks for a job. The rate of a job makes none longer: the time of its next batch is in its row.
const JOBS: Duration = Duration::from_secs(2);
/// Shortest pause between two batches of a job.
const REST: Duration = Duration::from_millis(20);

/// Carries out jobs until the relay is stopped.
pub(crate) async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    // Relays that were started together do not look together.
    let mut beat_at = Instant::now();
    let mut job_at = Instant::now() + JOBS.mul_f64(rand::random());
    while context.sleep(beat_at.min(job_at).saturating_duration_since(Instant::now())).await {
        if beat_at <= Instant::now() {
            // Before it knows the pauses it claims nothing.
            let is_known = context.controls.are_known();
            if is_known {
                beat(&context, &mut session).await;
            }
            beat_at = Instant::now() + if is_known { BEATS } else { SOON };
        }
        if job_at <= Instant::now() {
            let pause = job(&context, &mut session).await;
            job_at = Instant::now() + pause.clamp(REST, JOBS);
        }
        context.alive("jobs");
    }
    // If it fails, the heartbeat is forgotten after a day.
    session.run("beat", async |db| instances::leave(db, &context.owner).await).await.ok();
}

/// Writes a heartbeat. The next one follows in any case: a failure was logged.
async fn beat(context: &Context, session: &mut Session) {
    let relay = &context.config.relay;
    let lanes = serde_json::to_string(&relay.lanes).unwrap_or_default();
    let sinks = serde_json::to_string(&context.sinks()).unwrap_or_default();
    // A process may be switched off once it holds no message: none that is not read yet, and none that is sent and not
    // settled.
    let tenures = context.leases.all();
    let held: usize = tenures.iter().filter(|tenure| !tenure.is_abandoned()).map(|tenure| tenure.ids.len()).sum();
    let tail = context.stream.told();
    context.health.tail(tail.clone());
    let beat = Beat {
        tail: tail.as_deref(),
        instance: &context.owner,
        role: context.role.name(),
        version: env!("CARGO_PKG_VERSION"),
        lanes: &lanes,
        sinks: &sinks,
        // One that does not know of a pause may claim the next moment.
        in_flight: u32::try_from(held).unwrap_or(u32::MAX).max(u32::from(!context.controls.are_fresh(Instant::now()))),
    };
    session.run("beat", async |db| instances::beat(db, &beat).await).await.ok();
    ask(context, session).await;
}

/// Asks whether destinations that refuse have taken a message before: from this process before its restart, or from
/// another one.
async fn ask(context: &Context, session: &mut Session) {
    let unproven = context.unproven.lock().clone();
    let asked = unproven.into_iter().filter(|(_, answer)| answer.is_none()).map(|(destination, _)| destination);
    for destination in asked.take(QUESTIONS) {
        let place = Receipt::new(&format!("{}/{}", destination.target, destination.routing_key)).place;
        if let Ok(answer) = session.run("beat", async |db| find::has_lately_sent(db, &place).await).await {
            context.unproven.lock().insert(destination, Some(answer));
        }
    }
}

/// Carries out a batch of a job; returns the pause before the next look for one.
async fn job(context: &Context, session: &mut Session) -> Duration {
    let kept = context.config.retention.sent;
    match session.run("job", async |db| step(db, kept).await).await {
        Ok(Some(JobProgress { job_id, messages, pause, is_last })) => {
            if messages > 0 {
                context.nudge.notify_waiters();
            }
            if is_last {
                tracing::info!(job_id, "a job has ended");
            }
            pause
        }
        Ok(None) => JOBS,
        Err(_) => {
            session.pause().await;
            JOBS
        }
    }
}
