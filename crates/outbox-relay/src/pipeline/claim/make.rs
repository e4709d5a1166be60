//! Makes claims, and moves rows into the queues of their keys.

use std::{collections::HashMap, sync::Arc, time::Instant};

use outbox_core::{
    sqlx,
    store::claim::{self, NewClaim, NewClaims, Pending, lease::ClaimLease},
};

use super::{Claimer, Made, Memory, Pass, window::Selection};
use crate::state::{
    leases::Tenure,
    session::{self, Loan, Session},
};

/// Largest claim, in KiB, whose messages are read in the claim's own round trip. The messages of larger claims are read
/// while the claimer makes the next claim. Several claims of a pass may have this size on average, but no more in all
/// than [`BROUGHT_AT_MOST`].
const BROUGHT_ALONG: usize = 64;
const BROUGHT_AT_MOST: usize = 512;

impl Claimer {
    pub(super) async fn defer(
        &self,
        session: &mut Session,
        version: u64,
        rows: &[Pending],
    ) -> Result<Pass, sqlx::Error> {
        let head = (self.lane, version, token());
        let won = session.run("defer", async |db| claim::defer(db, head, &ids(rows)).await).await?;
        Ok(if won { Pass::Deferred } else { Pass::Conflict })
    }

    pub(super) async fn claim(
        &self,
        memory: &mut Memory,
        mut session: Loan<'_>,
        version: u64,
        selection: &Selection,
    ) -> Result<Option<Made>, sqlx::Error> {
        let named: Vec<(u64, Vec<u64>, Vec<u64>)> = selection.claims.iter().map(|rows| name(rows)).collect();
        let claims = named.iter().map(|(token, message_ids, key_hashes)| NewClaim {
            lease_token: *token,
            message_ids,
            key_hashes,
        });
        let claims: Vec<NewClaim<'_>> = claims.collect();
        let new = NewClaims {
            lane: self.lane,
            version,
            low: selection.low.unwrap_or(0),
            owner: &self.context.owner,
            lease: self.context.config.relay.lease,
            claims: &claims,
            behind: &ids(&selection.behind),
        };
        // The server starts the lease after this moment, so the lease lasts at least until then.
        let until = Instant::now() + new.lease;
        let is_small = selection.claims.iter().map(|rows| kib(rows)).sum::<usize>()
            <= (BROUGHT_ALONG * claims.len()).min(BROUGHT_AT_MOST);
        let claim = session.run("claim", async |db| {
            if is_small { claim::claim_and_read(db, &new).await } else { Ok((claim::claim(db, &new).await?, None)) }
        });
        let (made, messages) = match claim.await {
            Ok(made) => made,
            Err(error) => {
                memory.foreign.forget_ids();
                // Other claimers may use the connection during the wait.
                drop(session);
                let tokens: Vec<u64> = named.iter().map(|(token, ..)| *token).collect();
                (self.find(&tokens, until).await.ok_or(error)?, None)
            }
        };
        if made.iter().any(|lease| lease.claim_id <= memory.foreign.known) {
            // Claim numbers began again lower down. Other relays may get such numbers too.
            memory.foreign.forget_ids();
        }
        let by_token: HashMap<u64, ClaimLease> = made.iter().map(|lease| (lease.lease_token, *lease)).collect();
        let tenures = named.into_iter().filter_map(|(token, ids, keys)| {
            let mut tenure = Tenure::new(*by_token.get(&token)?, self.lane, ids, keys, until);
            let queued = selection.queued.iter().filter(|key| tenure.keys.binary_search(key).is_ok());
            tenure.queued = queued.copied().collect();
            Some(Arc::new(tenure))
        });
        let tenures: Vec<_> = tenures.collect();
        Ok((!tenures.is_empty()).then_some((tenures, messages)))
    }

    /// Looks for the claims after an error: asks until the database answers, or the lease has passed.
    async fn find(&self, tokens: &[u64], until: Instant) -> Option<Vec<ClaimLease>> {
        let mut pauses = session::pauses();
        loop {
            tokio::time::sleep(pauses.next()).await;
            if Instant::now() >= until {
                return None;
            }
            let mut session = self.sessions.take().await;
            let owner = &self.context.owner;
            let found = session.run("find", async |db| claim::find(db, self.lane, owner, tokens).await).await;
            if let Ok(found) = found {
                return Some(found);
            }
        }
    }
}

/// Returns a token, the ids and the keys of a claim of these rows.
fn name(rows: &[Pending]) -> (u64, Vec<u64>, Vec<u64>) {
    let mut keys: Vec<u64> = rows.iter().map(|row| row.key_hash).filter(|key| *key != 0).collect();
    keys.sort_unstable();
    keys.dedup();
    (token(), ids(rows), keys)
}

fn ids(rows: &[Pending]) -> Vec<u64> {
    rows.iter().map(|row| row.id).collect()
}

pub(super) fn kib(rows: &[Pending]) -> usize {
    let bytes: u64 = rows.iter().map(|row| u64::from(row.bytes)).sum();
    usize::try_from(bytes.div_ceil(1024)).unwrap_or(usize::MAX).max(1)
}

/// Returns a lease token that no other claim has; 0 means none.
pub(super) fn token() -> u64 {
    rand::random::<u64>().max(1)
}
