//! Carries out what operators have ordered. All relays look for it, and a compare-and-set gives each batch to one of them.

use std::{sync::Arc, time::Duration};

use crate::{
    operate::jobs::{Progress, step},
    state::{context::Context, session::Session},
};

/// Pause between two looks for a job.
const EVERY: Duration = Duration::from_secs(2);
/// Shortest pause between two batches.
const REST: Duration = Duration::from_millis(20);

/// Carries out jobs until the relay is stopped.
pub async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    // Relays that were started together do not look together.
    let mut wait = EVERY.mul_f64(rand::random());
    while context.sleep(wait).await {
        wait = match session.run("job", async |db| step(db).await).await {
            Ok(Some(Progress { job_id, messages, pause, is_last })) => {
                if messages > 0 {
                    context.nudge.notify_waiters();
                }
                if is_last {
                    tracing::info!(job_id, "a job has ended");
                }
                pause.max(REST)
            }
            Ok(None) => EVERY,
            Err(_) => {
                session.pause().await;
                EVERY
            }
        };
        context.alive("jobs");
    }
}
