//! Finding lanes and giving each its claimer.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use outbox_core::{sqlx, store::lanes};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use crate::{
    capacity::Capacity,
    claim::{Claimed, Claimer},
    context::Context,
    session::Session,
};

/// How long a message in a new lane waits for its claimer.
const EVERY: Duration = Duration::from_secs(1);

/// Starts a claimer for every lane that this relay serves, until the relay is stopped; then waits for all of them.
pub async fn run(
    context: Arc<Context>,
    capacity: Capacity,
    open: watch::Receiver<bool>,
    claims: mpsc::Sender<Claimed>,
) -> anyhow::Result<()> {
    let mut session = Session::new(&context);
    let (mut served, mut claimers) = (BTreeSet::new(), JoinSet::new());
    let mut wait = Duration::ZERO;
    while context.sleep(wait).await {
        wait = EVERY;
        let Ok(lanes) = find(&context, &mut session).await else {
            session.pause().await;
            continue;
        };
        for lane in lanes {
            if served.insert(lane) {
                let (context, open, claims) = (Arc::clone(&context), open.clone(), claims.clone());
                let last_pass = Arc::new(AtomicU64::new(0));
                let capacity = capacity.clone();
                capacity.count.serve(lane);
                capacity.kib.serve(lane);
                claimers.spawn(Claimer { context, lane, capacity, open, claims, last_pass }.run());
            }
        }
    }
    while let Some(ended) = claimers.join_next().await {
        ended?;
    }
    Ok(())
}

/// The lanes to serve: those that the configuration names, or all that have a head or a pending row.
async fn find(context: &Context, session: &mut Session) -> Result<BTreeSet<u16>, sqlx::Error> {
    let named = &context.config.relay.lanes;
    let mut lanes: BTreeSet<u16> =
        session.run("lanes", async |db| lanes::with_head(db).await).await?.into_iter().collect();
    // Not among the rows of known lanes, where a snapshot may keep millions that are deleted.
    let mut from = 0;
    for end in lanes.clone().into_iter().map(u32::from).chain([lanes::END]) {
        while from < end {
            let next = session.run("lanes", async |db| lanes::next_pending(db, from..end).await).await?;
            let Some(lane) = next else { break };
            session.run("lanes", async |db| lanes::create_head(db, lane).await).await?;
            lanes.insert(lane);
            from = u32::from(lane) + 1;
        }
        from = end + 1;
    }
    lanes.retain(|lane| named.is_empty() || named.contains(lane));
    Ok(lanes)
}
