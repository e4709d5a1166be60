//! Deletes rows that are older than their retention: one relay at a time, in small chunks.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::{
    lease::{Lease, LeaseError, Leases},
    sqlx,
    store::operate::{instances, purge},
};

use crate::{
    database,
    state::{
        context::Context,
        session::{Session, describe},
    },
};

/// The length of the lease on the purging.
const LEASE: Duration = Duration::from_secs(60);
/// Pause between two looks for rows to delete.
const EVERY: Duration = Duration::from_secs(10);
/// Pause between two looks at tables that have no index by time, and few rows to delete.
const SWEEPS: Duration = Duration::from_hours(1);
/// Messages of one chunk.
const MESSAGES: usize = 1000;
const ROWS: u32 = 1000;
/// Most reads of receipts in a pass: it may find many that stay.
const READS: usize = 100;

/// The state between two passes.
struct Position {
    /// Receipts up to this number stay. They are looked at again with each sweep.
    above: u64,
    /// The time of the next sweep.
    sweep_at: Instant,
}

/// Purges until the relay is stopped.
pub(crate) async fn run(context: Arc<Context>) {
    if let Err(error) = context.config.retention.check_window() {
        tracing::warn!(%error, "a replay of sent messages can apply some of them twice");
        context.metrics.inbox_window_too_short.set(1);
    }
    let mut session = Session::new(&context);
    let mut lease = None;
    let mut position = Position { above: 0, sweep_at: Instant::now() };
    let mut wait = Duration::from_millis(500);
    while context.sleep(wait).await {
        wait = EVERY;
        if !is_mine(&context, &mut lease).await {
            continue;
        }
        let started = Instant::now();
        if let Ok(rows) = pass(&context, &mut session, &mut position).await {
            context.alive("purge");
            if rows > 0 {
                wait = purge::rest(started.elapsed());
            }
        }
    }
    if let Some(lease) = lease
        && let Err(error) = lease.release().await
    {
        tracing::debug!(%error, "the lease on the purging ends by itself");
    }
}

/// Whether this relay is the one that purges; tries to become it.
///
/// A lease keeps the options with which it was made. So each try makes a new one: a password may have changed.
async fn is_mine(context: &Context, lease: &mut Option<Lease>) -> bool {
    if lease.as_ref().is_some_and(Lease::is_held) {
        return true;
    }
    let acquired = match database::current(&context.login).await {
        Ok(options) => {
            let leases = Leases::new(options).reserved().owner(context.owner.as_str()).length(LEASE);
            leases.try_acquire(purge::LEASE_NAME).await
        }
        Err(error) => Err(error.into()),
    };
    match acquired {
        Ok(acquired) => *lease = acquired,
        Err(LeaseError::Database(error)) => {
            *lease = None;
            tracing::warn!(error = %describe(&error), "the lease on the purging could not be acquired");
            return false;
        }
        Err(error) => {
            *lease = None;
            tracing::warn!(%error, "the lease on the purging could not be acquired");
            return false;
        }
    }
    lease.is_some()
}

/// Deletes receipts and their messages, until a chunk is full. A receipt can stand for one message.
async fn purge_sent(session: &mut Session, age: Duration, above: &mut u64) -> Result<(u64, u64), sqlx::Error> {
    let mut gone = (0, 0);
    for _ in 0..READS {
        let before = *above;
        let (receipts, messages) = session.run("purge", async |db| purge::sent(db, age, above, MESSAGES).await).await?;
        gone = (gone.0 + receipts, gone.1 + messages);
        let is_full = gone.0 >= MESSAGES as u64 || gone.1 >= MESSAGES as u64;
        if is_full || receipts == 0 && *above == before {
            break;
        }
    }
    Ok(gone)
}

/// Deletes one chunk of ended jobs and of the audit; returns the number of rows.
async fn sweep(context: &Context, session: &mut Session) -> Result<u64, sqlx::Error> {
    let age = context.config.retention.audit;
    let mut jobs = Ok(0);
    let mut audit = Ok(0);
    if !age.is_zero() {
        jobs = session.run("purge", async |db| purge::jobs(db, age, ROWS).await).await;
        audit = session.run("purge", async |db| purge::audit(db, age, ROWS).await).await;
    }
    let gone = |table, rows| context.metrics.purged_messages_total.with_label_values(&[table]).inc_by(rows);
    gone("outbox_jobs", *jobs.as_ref().unwrap_or(&0));
    gone("outbox_audit", *audit.as_ref().unwrap_or(&0));
    Ok(jobs? + audit?)
}

/// Deletes one chunk of each kind; returns the number of receipts and other rows. A failure of one kind does not hold
/// up the others.
async fn pass(context: &Context, session: &mut Session, position: &mut Position) -> Result<u64, sqlx::Error> {
    let keep = &context.config.retention;
    let is_sweep = position.sweep_at <= Instant::now();
    if is_sweep {
        position.above = 0;
    }
    let mut sent = Ok((0, 0));
    let mut dead = Ok(0);
    let mut inbox = Ok(0);
    if !keep.sent.is_zero() {
        sent = purge_sent(session, keep.sent, &mut position.above).await;
    }
    if !keep.dead.is_zero() {
        dead = session.run("purge", async |db| purge::dead(db, keep.dead, ROWS).await).await;
    }
    if !keep.inbox.is_zero() {
        inbox = session.run("purge", async |db| purge::inbox(db, keep.inbox, ROWS).await).await;
    }
    // A failure was logged, and holds up nothing.
    session.run("purge", async |db| instances::forget(db).await).await.ok();
    let gone = |table, rows| context.metrics.purged_messages_total.with_label_values(&[table]).inc_by(rows);
    gone("outbox_messages", sent.as_ref().map_or(0, |(_, messages)| *messages));
    gone("outbox_dead", *dead.as_ref().unwrap_or(&0));
    gone("inbox_processed", *inbox.as_ref().unwrap_or(&0));
    let mut swept = 0;
    if is_sweep {
        // A failure was logged, and slows nothing down.
        swept = sweep(context, session).await.unwrap_or(0);
        // A full chunk is followed by the next one.
        if swept < u64::from(ROWS) {
            position.sweep_at = Instant::now() + SWEEPS;
        }
    }
    Ok(sent?.0 + dead? + inbox? + swept)
}
