//! Takes over the claims of relays that died. Relays watch each other; there is no supervisor.

use std::{collections::HashSet, sync::Arc, time::Duration};

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::claim::{
        self, Look, lease,
        tail::{self, ClaimKind, Stale},
    },
};

use crate::state::{context::Context, session::Session};

/// A tail that was not written for this time is closed. Its owner writes it every second.
const SILENT: Duration = Duration::from_millis(2500);
/// The time in which the owner of a closed claim can list it.
const CLOSED: Duration = Duration::from_millis(500);
/// Most rows of a list that is made for another relay. A closed claim with more ends with its lease.
const MOST: u32 = 50_000;
/// Most rows of such a claim that are counted as possible duplicates.
const COUNTED: u32 = 1_000_000;

/// Looks for claims whose lease has passed, several times within a lease, until the relay is stopped.
pub(crate) async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    let pause = (context.config.relay.lease / 10).clamp(Duration::from_millis(100), Duration::from_secs(1));
    // Relays that were started together do not look together.
    while context.sleep(pause.mul_f64(0.5 + rand::random::<f64>())).await {
        // A dead worker may leave more claims than one look shows, and one that cannot be taken over hides no other.
        if watch(&context, &mut session).await && context.sleep(CLOSED).await {
            watch(&context, &mut session).await;
        }
        let mut above = Some(0);
        while let Some(last) = above {
            above = take_over(&context, &mut session, last).await;
            context.alive("takeover");
        }
    }
}

/// Takes over the claims above this one that one look shows. Returns the last of them if there may be more.
async fn take_over(context: &Context, session: &mut Session, above: u64) -> Option<u64> {
    let Ok(expired) = session.run("expired", async |db| lease::expired(db, above).await).await else {
        session.pause().await;
        return None;
    };
    // This relay can still renew or settle its own late claims, until another relay takes them over.
    for claim in expired.iter().filter(|claim| !context.leases.keeps(claim.lease)) {
        // Those of a tail with too many rows for a list.
        let unlisted = match claim.mark {
            0 => Ok(0),
            mark => session.run("tail", async |db| tail::rows(db, (claim.lane, mark), COUNTED).await).await,
        };
        let taken = session.run("take_over", async |db| lease::take_over(db, claim).await).await;
        // Without a reply the take-over may have happened.
        let unanswered = taken.as_ref().is_err_and(|error| error.as_database_error().is_none());
        let messages = claim.message_ids.len() + unlisted.unwrap_or(0);
        if unanswered || matches!(taken, Ok(true)) {
            context.metrics.possible_duplicates_total.with_label_values(&["takeover"]).inc_by(messages as u64);
        }
        if unanswered {
            // The next look shows what is left.
            return None;
        }
        // One lock wait takes seconds, and the loop is alive meanwhile.
        context.alive("takeover");
        if matches!(taken, Ok(true)) {
            context.metrics.lease_takeovers_total.inc();
            tracing::warn!(
                claim_id = claim.lease.claim_id,
                from = claim.owner,
                lane = claim.lane,
                messages,
                "took over a claim whose lease had passed"
            );
        }
    }
    expired.last().filter(|_| expired.len() >= lease::MOST_EXPIRED).map(|claim| claim.lease.claim_id)
}

/// Closes tails whose owner is silent, and turns closed ones into lists. One that cannot be read hides no other.
/// Returns whether it closed one.
async fn watch(context: &Context, session: &mut Session) -> bool {
    let Ok(claims) = session.run("tail", tail::all).await else {
        session.pause().await;
        return false;
    };
    let mut has_closed = false;
    for stale in claims.iter().filter(|stale| !context.leases.keeps(stale.tail.lease)) {
        let lease = stale.tail.lease;
        if matches!(stale.tail.kind, ClaimKind::Open | ClaimKind::Forming) && stale.quiet >= SILENT {
            let closed = session.run("tail", async |db| tail::close(db, lease, SILENT).await).await;
            if matches!(closed, Ok(true)) {
                has_closed = true;
                tracing::warn!(
                    claim_id = lease.claim_id,
                    from = stale.owner,
                    lane = stale.lane,
                    "closed a tail: its owner is silent"
                );
            }
        } else if stale.tail.kind == ClaimKind::Closed && stale.quiet >= CLOSED {
            session.run("tail", async |db| list(db, stale).await).await.ok();
        }
    }
    has_closed
}

/// Turns a closed claim into a list of what its owner may have taken.
async fn list(db: &mut MySqlConnection, stale: &Stale) -> Result<(), sqlx::Error> {
    // Without an owner, all lists are read whole.
    let seen = claim::look(db, &Look { lane: stale.lane, limit: MOST, ..Look::default() }).await?;
    let mut rows = seen.fresh;
    let is_all = rows.len() < MOST as usize || rows.last().is_some_and(|row| row.id > stale.tail.mark);
    let listed: HashSet<u64> = seen.claims.iter().flat_map(|claim| &claim.message_ids).copied().collect();
    rows.retain(|row| row.id <= stale.tail.mark && !listed.contains(&row.id));
    let mut keys: Vec<u64> = rows.iter().map(|row| row.key_hash).filter(|key| *key != 0).collect();
    keys.sort_unstable();
    keys.dedup();
    let ids: Vec<u64> = rows.iter().map(|row| row.id).collect();
    if is_all && tail::list(db, stale.tail.lease, (&ids, &keys)).await? {
        tracing::warn!(
            claim_id = stale.tail.lease.claim_id,
            from = stale.owner,
            lane = stale.lane,
            messages = ids.len(),
            "a closed tail is a list now: these messages may be in flight"
        );
    }
    Ok(())
}
