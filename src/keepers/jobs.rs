//! Carries out the jobs of operators. All relays look for jobs, and a compare-and-set gives each batch to one of them.

use std::{sync::Arc, time::Duration};

use crate::{
    operate::jobs::{Progress, step},
    state::{context::Context, session::Session},
};

/// Pause between two looks for a job.
const JOBS: Duration = Duration::from_secs(2);
/// Shortest pause between two batches of a job.
const REST: Duration = Duration::from_millis(20);

/// Carries out jobs until the relay is stopped.
pub async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    // Relays that were started together do not look together.
    let mut pause = JOBS.mul_f64(rand::random());
    while context.sleep(pause).await {
        pause = job(&context, &mut session).await;
        context.alive("jobs");
    }
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
