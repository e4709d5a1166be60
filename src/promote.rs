//! Putting delayed messages that are due back among the pending ones.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use outbox_core::{
    sqlx,
    store::{lanes, promote},
};

use crate::{context::Context, session::Session};

/// Most messages of one look.
const CHUNK: u32 = 1000;
/// Longest pause between two looks. A message that was delayed for longer is put back on time, because a look sees it coming; where
/// one follows the other, [`STREAM`] late at most.
const EVERY: Duration = Duration::from_millis(400);
/// Shortest pause between two looks: messages that are due soon after one another go together.
const TOGETHER: Duration = Duration::from_millis(20);
/// The same after some were put back: each time, what claimers have seen is void.
const STREAM: Duration = Duration::from_millis(100);

/// Promotes until the relay is stopped. Several relays may do so: the lane's head keeps them apart.
pub async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    let mut wait = EVERY.mul_f64(rand::random());
    while context.sleep(wait).await {
        wait = match pass(&mut session).await {
            Ok(next) => next.min(EVERY),
            Err(_) => {
                session.pause().await;
                TOGETHER
            }
        };
        context.alive("promote");
    }
}

async fn promote(session: &mut Session, lane: u16, ids: &[u64]) -> Result<(), sqlx::Error> {
    session.run("create_head", async |db| lanes::create_head(db, lane).await).await?;
    session.run("promote", async |db| promote::promote(db, lane, ids).await).await.map(drop)
}

/// Puts back what is due; returns when the next is.
async fn pass(session: &mut Session) -> Result<Duration, sqlx::Error> {
    let coming = session.run("due", async |db| promote::due(db, EVERY, CHUNK).await).await?;
    let mut by_lane: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
    for due in coming.iter().filter(|due| due.wait.is_zero()) {
        by_lane.entry(due.lane).or_default().push(due.id);
    }
    let mut refused = Ok(());
    for (lane, ids) in &by_lane {
        match promote(session, *lane, ids).await {
            // For this lane: it does not hold up the others.
            Err(error) if error.as_database_error().is_some() => refused = Err(error),
            other => other?,
        }
    }
    refused?;
    let next = coming.iter().map(|due| due.wait).find(|wait| !wait.is_zero());
    let least = if by_lane.is_empty() { TOGETHER } else { STREAM };
    Ok(match next {
        None if coming.len() == CHUNK as usize => TOGETHER,
        next => next.unwrap_or(EVERY).max(least),
    })
}
