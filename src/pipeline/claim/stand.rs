//! Claims under a standing claim: when one is made, what it takes, and when it ends.

use std::{
    panic::resume_unwind,
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::{
    sqlx,
    store::{
        claim::{self, NewClaim, NewClaims, Pending, Seen},
        floor,
        standing::{self, Kind},
    },
};
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinSet,
};

use super::{Claimer, Memory, Pass, make::token, window::Selection};
use crate::{
    pipeline::{
        settle::{Finished, Settler},
        standing::Standing,
    },
    state::{leases::Tenure, session::Loan},
};

/// After this number of small claims in a row, a relay makes a standing claim. It costs two commits, so that it is not worth it for
/// claims with longer pauses.
const SMALL_CLAIMS: u32 = 3;
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// With large looks for this time, or without room for messages in flight, a standing claim ends.
const BUSY: Duration = Duration::from_millis(200);
/// The pause before a relay asks again whether its server is in a Galera cluster.
const GALERA: Duration = Duration::from_secs(60);

/// The standing claim of a claimer, and when the next one may be made.
pub(super) struct Stands {
    standing: Option<Arc<Standing>>,
    settling: JoinSet<()>,
    small_claims: u32,
    claimed_at: Instant,
    rests_until: Instant,
    /// Since when looks are large.
    busy_since: Option<Instant>,
    /// The number of the claim when the last look was sent: it sees no earlier one.
    looked_for: u64,
}

impl Stands {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let (standing, settling) = (None, JoinSet::new());
        let busy_since = None;
        Self { standing, settling, small_claims: 0, claimed_at: now, rests_until: now, busy_since, looked_for: 0 }
    }

    /// Notes the size of a claim.
    pub(super) fn claimed(&mut self, is_small: bool) {
        let follows = is_small && self.claimed_at.elapsed() < LONGEST_PAUSE;
        (self.small_claims, self.claimed_at) = (if follows { self.small_claims + 1 } else { 0 }, Instant::now());
    }

    /// Whether rows are taken under a standing claim.
    pub(super) fn is_standing(&self) -> bool {
        self.standing.as_ref().is_some_and(|standing| standing.is_open())
    }

    /// The kind of claim under which a look takes rows, for the metrics.
    pub(super) fn kind(&self) -> &'static str {
        if self.is_standing() { "standing" } else { "list" }
    }

    /// Notes that a look is sent.
    pub(super) fn look(&mut self) {
        self.looked_for = self.standing.as_ref().map_or(0, |standing| standing.lease().claim_id);
    }

    /// Ends the standing claim, if there is one.
    pub(super) fn end(&mut self, why: &str) {
        if let Some(standing) = self.standing.take() {
            tracing::debug!(why, "a standing claim ends");
            (self.small_claims, self.busy_since, self.rests_until) = (0, None, Instant::now() + standing.end());
        }
    }

    /// Waits for the work. If that takes long, the standing claim ends.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        if let Ok(done) = tokio::time::timeout(BUSY, &mut work).await {
            return done;
        }
        self.end("it waits for room");
        work.await
    }

    /// Ends the standing claim, and waits until it is settled.
    pub(super) async fn finish(&mut self) {
        self.end("the relay stops");
        while let Some(ended) = self.settling.join_next().await {
            raise(ended);
        }
    }

    /// Forgets a standing claim that is over.
    pub(super) fn sweep(&mut self) {
        while let Some(ended) = self.settling.try_join_next() {
            raise(ended);
        }
        if let Some(rest) = self.standing.as_ref().and_then(|standing| standing.rest()) {
            (self.standing, self.small_claims, self.rests_until) = (None, 0, Instant::now() + rest);
        }
    }
}

/// Goes on with the panic of a settler.
fn raise(ended: Result<(), tokio::task::JoinError>) {
    if let Err(Ok(panic)) = ended.map_err(tokio::task::JoinError::try_into_panic) {
        resume_unwind(panic);
    }
}

impl Claimer {
    /// Whether the next claim is to be a standing one.
    pub(super) fn is_to_stand(&self, memory: &Memory, selection: &Selection) -> bool {
        let stands = &memory.stands;
        self.context.config.relay.standing_claims
            && self.context.role.shares_keys()
            && stands.standing.is_none()
            && stands.small_claims >= SMALL_CLAIMS
            && stands.claimed_at.elapsed() < LONGEST_PAUSE
            && stands.rests_until <= Instant::now()
            && is_plain(selection)
    }

    /// Makes a standing claim. In a Galera cluster a look is of one node, and other nodes have later writes: there it makes none.
    pub(super) async fn stand(
        &self,
        memory: &mut Memory,
        mut session: Loan<'_>,
        version: u64,
        (selection, seen): (&Selection, &Seen),
    ) -> Result<Pass, sqlx::Error> {
        if session.run("standing", floor::is_in_galera).await? {
            memory.stands.rests_until = Instant::now() + GALERA;
            return Ok(Pass::Empty);
        }
        let (token, mark) = (token(), Standing::first_mark(highest(seen)));
        let claims = [NewClaim { lease_token: token, message_ids: &[], key_hashes: &[] }];
        let new = NewClaims {
            lane: self.lane,
            version,
            low: selection.low.unwrap_or(0),
            owner: &self.context.owner,
            lease: self.context.config.relay.lease,
            claims: &claims,
            behind: &[],
        };
        let until = Instant::now() + new.lease;
        let made = match session.run("claim", async |db| claim::stand(db, &new, mark).await).await {
            Ok(made) => made,
            Err(error) => {
                memory.foreign.forget_ids();
                // Other claimers may use the connection during the wait.
                drop(session);
                self.find(&[token], until).await.ok_or(error)?
            }
        };
        let Some(lease) = made.first() else { return Ok(Pass::Conflict) };
        let (finished, queue) = mpsc::unbounded_channel();
        let claim = standing::Standing { lease: *lease, kind: Kind::Open, mark };
        let standing = Arc::new(Standing::new(&self.context, (self.lane, claim), until, finished));
        let settler = Settler {
            context: Arc::clone(&self.context),
            queue: Arc::new(Mutex::new(queue)),
            settled: self.settled.clone(),
            standing: Some(Arc::clone(&standing)),
        };
        memory.stands.settling.spawn(settler.run());
        memory.stands.standing = Some(standing);
        Ok(Pass::Deferred)
    }

    /// Takes rows under a standing claim that a look has read. `None`: it is another's, or nothing can be taken.
    pub(super) fn take(
        &self,
        memory: &mut Memory,
        (seen, selection): (&Seen, &Selection),
        (claim, version): (standing::Standing, u64),
    ) -> Option<(Arc<Tenure>, Vec<Pending>, mpsc::UnboundedSender<Finished>)> {
        let stands = &mut memory.stands;
        let standing = stands.standing.as_ref().filter(|it| it.lease().lease_token == claim.lease.lease_token)?;
        let mut rows = selection.claims.concat();
        let is_large = rows.len() >= self.context.config.relay.claim_messages / 8;
        stands.busy_since = if is_large { stands.busy_since.or(Some(Instant::now())) } else { None };
        let why = if claim.kind != Kind::Open {
            Some("it was closed")
        } else if claim.lease.claim_id < stands.looked_for {
            // Of another node, or from before a restore.
            Some("the look is older than the last settlement")
        } else if !is_plain(selection) {
            Some("rows wait in a queue, or were taken over")
        } else {
            stands.busy_since.filter(|since| since.elapsed() >= BUSY).map(|_| "a backlog")
        };
        if let Some(why) = why {
            stands.end(why);
            return None;
        }
        let low = (version, selection.low.unwrap_or(seen.low));
        let tenure = standing.take((&mut rows, &selection.queued), highest(seen), low)?;
        Some((tenure, rows, standing.settler()))
    }
}

/// Whether no row must wait in the queue of its key, and none was taken over.
fn is_plain(selection: &Selection) -> bool {
    selection.behind.is_empty() && selection.claims.iter().flatten().all(|row| row.takeovers == 0)
}

fn highest(seen: &Seen) -> u64 {
    seen.fresh.last().or(seen.below.last()).map_or(0, |row| row.id)
}
