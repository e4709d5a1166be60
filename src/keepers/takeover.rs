//! Takes over the claims of relays that died. Relays watch each other; there is no supervisor.

use std::{sync::Arc, time::Duration};

use outbox_core::store::lease;

use crate::state::{context::Context, session::Session};

/// Looks for claims whose lease has passed, several times within a lease, until the relay is stopped.
pub async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    let pause = (context.config.relay.lease / 10).clamp(Duration::from_millis(100), Duration::from_secs(1));
    // Relays that were started together do not look together.
    while context.sleep(pause.mul_f64(0.5 + rand::random::<f64>())).await {
        // A dead worker may leave more claims than one look shows, and one that cannot be taken over hides no other.
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
    let own = context.leases.all();
    let held =
        |claim: &&lease::Expired| !own.iter().any(|tenure| tenure.lease == claim.lease && !tenure.is_abandoned());
    // This relay can still renew or settle its own late claims, until another relay takes them over.
    for claim in expired.iter().filter(held) {
        let taken = session.run("take_over", async |db| lease::take_over(db, claim).await).await;
        // Without a reply the take-over may have happened.
        let unanswered = taken.as_ref().is_err_and(|error| error.as_database_error().is_none());
        let messages = claim.message_ids.len();
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
