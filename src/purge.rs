//! Deleting what is older than its retention: one relay at a time, in small chunks.

use std::{sync::Arc, time::Duration};

use outbox_core::{
    lease::{Lease, LeaseError, Leases},
    sqlx,
    store::purge,
};

use crate::{
    context::Context,
    session::{Session, describe},
};

/// How long the lease on the purging lasts.
const LEASE: Duration = Duration::from_secs(60);
/// Pause between two looks for something to delete, and between two chunks.
const EVERY: Duration = Duration::from_secs(10);
const BETWEEN_CHUNKS: Duration = Duration::from_millis(50);
/// Rows of one chunk; a receipt stands for up to a thousand messages.
const RECEIPTS: u32 = 2;
const ROWS: u32 = 1000;

/// Purges until the relay is stopped.
pub async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    let leases = Leases::new(context.options.clone()).owner(context.owner.as_str()).length(LEASE);
    let mut lease = None;
    let mut wait = Duration::from_millis(500);
    while context.sleep(wait).await {
        wait = EVERY;
        if !is_mine(&context, &leases, &mut lease).await {
            continue;
        }
        if let Ok(rows) = pass(&context, &mut session).await {
            context.alive("purge");
            if rows > 0 {
                wait = BETWEEN_CHUNKS;
            }
        }
    }
    if let Some(lease) = lease
        && let Err(error) = lease.release().await
    {
        tracing::debug!(%error, "the lease on the purging ends by itself");
    }
}

/// Whether this relay is the one that purges. One that is not has done its part of the purging.
async fn is_mine(context: &Context, leases: &Leases, lease: &mut Option<Lease>) -> bool {
    if lease.as_ref().is_some_and(Lease::is_held) {
        return true;
    }
    match leases.try_acquire("purge").await {
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
    if lease.is_none() {
        context.alive("purge");
    }
    lease.is_some()
}

/// Deletes one chunk of each kind; returns how many rows went.
async fn pass(context: &Context, session: &mut Session) -> Result<u64, sqlx::Error> {
    let keep = &context.config.retention;
    let mut total = 0;
    if !keep.sent.is_zero() {
        let gone = session.run("purge", async |db| purge::sent(db, keep.sent, RECEIPTS).await).await?;
        total += note(context, "outbox_messages", gone);
    }
    if !keep.dead.is_zero() {
        let gone = session.run("purge", async |db| purge::dead(db, keep.dead, ROWS).await).await?;
        total += note(context, "outbox_dead", gone);
    }
    if !keep.inbox.is_zero() {
        let gone = session.run("purge", async |db| purge::inbox(db, keep.inbox, ROWS).await).await?;
        total += note(context, "inbox_processed", gone);
    }
    Ok(total)
}

fn note(context: &Context, table: &str, rows: u64) -> u64 {
    context.metrics.purged_messages_total.with_label_values(&[table]).inc_by(rows);
    rows
}
