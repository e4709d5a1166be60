//! Renews the leases of claims in flight.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::{
    sqlx,
    store::claim::lease::{self, ClaimLease},
};

use crate::state::{
    context::Context,
    crash,
    leases::{TailTenure, Tenure},
    session::Session,
};

/// Longest pause between two renewals, however long a lease is: the loop must show that it is alive.
pub(crate) const LONGEST: Duration = Duration::from_secs(20);

/// Renews all leases, at least three times within each, until it is dropped.
///
/// A lease that cannot be renewed is not extended: no publish starts that might outlast it.
pub(crate) async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    loop {
        tokio::time::sleep((context.config.relay.lease / 3).min(LONGEST)).await;
        loop {
            let mut tenures = context.leases.all();
            tenures.retain(|tenure| !tenure.is_abandoned() && !tenure.is_part);
            let tails = context.leases.tails();
            context.alive("renew");
            // All claims in flight depend on it: after a lost connection, the next try does not wait for the next turn.
            let is_idle = tenures.is_empty() && tails.is_empty();
            if is_idle || renew(&context, &mut session, &tenures, &tails).await.is_ok() {
                break;
            }
            session.pause().await;
        }
    }
}

async fn renew(
    context: &Context,
    session: &mut Session,
    tenures: &[Arc<Tenure>],
    tails: &[TailTenure],
) -> Result<(), sqlx::Error> {
    // A settlement renews a tail, too, unless its tables are locked.
    let tail_leases = tails.iter().map(|tail| tail.lease);
    let leases: Vec<ClaimLease> = tenures.iter().map(|tenure| tenure.lease).chain(tail_leases).collect();
    // The server starts the lease after this moment, so the lease lasts at least until then.
    let until = Instant::now() + context.config.relay.lease;
    let time = context.config.relay.lease;
    crash::point("before_renew");
    let renewed = session.run("renew", async |db| lease::renew(db, &leases, time).await).await;
    let renewals = &context.metrics.lease_renewals_total;
    if renewed.is_err() {
        renewals.with_label_values(&["error"]).inc_by(leases.len() as u64);
    }
    let lease::Renewed { prolonged, standing } = renewed?;
    let [prolonged, standing] = [prolonged, standing].map(HashSet::<ClaimLease>::from_iter);
    // A tail that is gone loses its parts in `Tail::became`.
    tails.iter().filter(|tail| prolonged.contains(&tail.lease)).for_each(|tail| tail.prolong(until));
    for tenure in tenures {
        if prolonged.contains(&tenure.lease) {
            tenure.prolong(until);
            renewals.with_label_values(&["renewed"]).inc();
        } else if standing.contains(&tenure.lease) {
            // It is being settled or taken over; the next turn shows which.
            renewals.with_label_values(&["locked"]).inc();
        } else if !tenure.is_settling() && tenure.lose() {
            renewals.with_label_values(&["lost"]).inc();
            context.metrics.leases_lost_total.inc();
            tracing::warn!(
                claim_id = tenure.lease.claim_id,
                "the lease was lost: it had ended, and a relay has taken the claim over"
            );
        }
    }
    Ok(())
}
