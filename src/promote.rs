//! Putting delayed messages that are due back among the pending ones.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use outbox_core::store::{lanes, promote};

use crate::{context::Context, session::Session};

/// Most messages of one look.
const CHUNK: u32 = 1000;
/// How late a delayed message may be put back.
const EVERY: Duration = Duration::from_millis(100);

/// Promotes until the relay is stopped. Several relays may do so: the lane's head keeps them apart.
pub async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    while context.sleep(EVERY.mul_f64(0.5 + rand::random::<f64>())).await {
        if pass(&mut session).await.is_err() {
            session.pause().await;
            continue;
        }
        context.alive("promote");
    }
}

async fn pass(session: &mut Session) -> Result<(), outbox_core::sqlx::Error> {
    loop {
        let due = session.run("due", async |db| promote::due(db, CHUNK).await).await?;
        let mut by_lane: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
        for due in &due {
            by_lane.entry(due.lane).or_default().push(due.id);
        }
        for (lane, ids) in &by_lane {
            session.run("create_head", async |db| lanes::create_head(db, *lane).await).await?;
            session.run("promote", async |db| promote::promote(db, *lane, ids).await).await?;
        }
        if due.len() < CHUNK as usize {
            return Ok(());
        }
    }
}
