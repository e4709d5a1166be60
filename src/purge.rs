//! Deleting what is older than its retention: one relay at a time, in small chunks.

use std::{sync::Arc, time::Duration};

use outbox_core::{
    sqlx,
    store::{purge, sweeper},
};

use crate::{context::Context, session::Session};

/// How long the lease on the sweeping lasts.
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
    let mut wait = Duration::from_millis(500);
    while context.sleep(wait).await {
        wait = EVERY;
        if let Ok(rows) = pass(&context, &mut session).await {
            context.alive("purge");
            if rows > 0 {
                wait = BETWEEN_CHUNKS;
            }
        }
    }
}

/// Deletes one chunk of each kind; returns how many rows went.
async fn pass(context: &Context, session: &mut Session) -> Result<u64, sqlx::Error> {
    let owner = context.owner.as_str();
    if !session.run("sweep", async |db| sweeper::acquire(db, "purge", owner, LEASE).await).await? {
        return Ok(0);
    }
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
