//! Tells operators by heartbeats that this process runs, and reads their pauses.

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

use crate::state::{context::Context, controls::Target, session::Session};

/// Pause between two looks for pauses. With the time of a look it is below the second within which a pause holds.
const PAUSES: Duration = Duration::from_millis(500);
/// Pause between two heartbeats.
const BEATS: Duration = Duration::from_secs(10);

/// Follows pauses until the relay is stopped. Nothing else is done here: a call that waits for a lock would delay a pause.
pub async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    let (mut pause, mut beat_at) = (Duration::ZERO, Instant::now());
    while context.sleep(pause).await {
        if read_pauses(&context, &mut session).await.is_err() {
            session.pause().await;
        }
        if beat_at <= Instant::now() {
            beat(&context, &mut session).await;
            beat_at = Instant::now() + BEATS;
        }
        context.alive("pauses");
        pause = PAUSES;
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
    let read = session.run("controls", async |db| controls::orders(db).await).await;
    let (rows, newest) = match &read {
        Ok((rows, newest)) => (rows.as_slice(), *newest),
        Err(error) if error.as_database_error().is_some() && !context.controls.are_known() => (&[][..], 0),
        Err(_) => return read.map(drop),
    };
    context.controls.set_newest_job(newest);
    let (begun, ended) = context.controls.set(rows, Instant::now());
    for (targets, is_paused) in [(begun, true), (ended, false)] {
        for (kind, name) in targets.iter().map(Target::names) {
            tracing::warn!(kind, name, "{}", if is_paused { "paused by an operator" } else { "not paused any more" });
            context.metrics.paused.with_label_values(&[kind, name.as_str()]).set(i64::from(is_paused));
        }
    }
    read.map(drop)
}
