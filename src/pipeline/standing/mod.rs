//! A standing claim of this process: which rows it has taken, and its settlement.

mod parts;
mod state;

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::{
    sqlx,
    store::{
        claim::Pending,
        lease::ClaimLease,
        settle::{self, Way},
        standing::{self, Found, Kind, Next},
    },
};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use self::{
    parts::{behind, merged},
    state::{Phase, SILENCE, Sent, State},
};
use crate::{
    pipeline::settle::{Finished, send},
    state::{context::Context, leases::Tenure, session::Session},
};

/// The time without a standing claim after one that ended for a reason.
pub(crate) const REST: Duration = Duration::from_secs(10);
/// Reasons of delays that may be this relay's own: then other relays get their turn.
const ELSEWHERE: [&str; 5] = ["no_sink", "no_route", "parked", "unroutable", "unread"];

/// A standing claim. Its parts are the rows of one look each. They are published like claims, and are settled together.
pub struct Standing {
    context: Arc<Context>,
    lane: u16,
    until: Arc<Mutex<Instant>>,
    state: Mutex<State>,
    changed: Notify,
    finished: mpsc::UnboundedSender<Finished>,
}

impl Standing {
    /// Begins with a claim that was made after this moment. Finished parts go to `finished`.
    pub(crate) fn new(
        context: &Arc<Context>,
        (lane, claim): (u16, standing::Standing),
        until: Instant,
        finished: mpsc::UnboundedSender<Finished>,
    ) -> Self {
        let state = State::new(claim);
        context.leases.stand(claim.lease.lease_token);
        let (until, changed) = (Arc::new(Mutex::new(until)), Notify::new());
        Self { context: Arc::clone(context), lane, until, state: Mutex::new(state), changed, finished }
    }

    /// The mark of a new standing claim, after a look that has seen this id.
    pub(crate) const fn first_mark(seen: u64) -> u64 {
        seen + state::FEWEST
    }

    /// Returns the queue of the settler of its parts.
    pub(crate) fn settler(&self) -> mpsc::UnboundedSender<Finished> {
        self.finished.clone()
    }

    /// Returns the claim's number and token now.
    pub(crate) fn lease(&self) -> ClaimLease {
        self.state.lock().claim.lease
    }

    /// Takes rows of a look that has read the claim as open: those up to the mark. The queues of the keys `queued` are read on after
    /// them. `seen` is the largest id of the look, `low` its version and the lane's `low` after it. `None` if nothing may be taken.
    pub(crate) fn take(
        &self,
        (rows, queued): (&mut Vec<Pending>, &[u64]),
        seen: u64,
        low: (u64, u64),
    ) -> Option<Arc<Tenure>> {
        let mut state = self.state.lock();
        state.seen = state.seen.max(seen);
        let all = rows.len();
        rows.retain(|row| row.id <= state.claim.mark);
        if rows.len() < all {
            state.needs_mark = true;
            self.changed.notify_one();
        }
        if rows.is_empty() || state.phase != Phase::Open || state.claim.kind != Kind::Open {
            return None;
        }
        state.low = Some(low);
        let now = Instant::now();
        state.taken = now;
        state.parts += 1;
        let lease = ClaimLease { claim_id: state.parts, ..state.claim.lease };
        let mut keys: Vec<u64> = rows.iter().map(|row| row.key_hash).filter(|key| *key != 0).collect();
        keys.sort_unstable();
        keys.dedup();
        let ids = rows.iter().map(|row| row.id).collect();
        let claim_id = state.claim.lease.claim_id;
        let mut tenure = Tenure::new(lease, self.lane, ids, keys, now).standing(claim_id, &self.until);
        tenure.queued = queued.iter().filter(|key| tenure.keys.binary_search(key).is_ok()).copied().collect();
        let tenure = Arc::new(tenure);
        // Under the lock: a list of what is in flight has all of it.
        self.context.leases.insert(&tenure);
        Some(tenure)
    }

    /// Ends the claim, which takes nothing more. The rows in flight become a list. Returns how long no standing claim follows.
    pub(crate) fn end(&self) -> Duration {
        let mut state = self.state.lock();
        if state.phase == Phase::Open {
            state.end();
            self.changed.notify_one();
        }
        state.rest.max(REST)
    }

    /// Whether it takes rows.
    pub(crate) fn is_open(&self) -> bool {
        let state = self.state.lock();
        state.claim.kind == Kind::Open && state.phase == Phase::Open
    }

    /// Returns how long no standing claim follows, if this one is over.
    pub(crate) fn rest(&self) -> Option<Duration> {
        let state = self.state.lock();
        (state.phase == Phase::Over).then_some(state.rest)
    }

    /// Notes that a part is settled, lost or abandoned.
    pub(crate) fn closed(&self) {
        self.state.lock().closed += 1;
    }

    /// Whether it is over, and none of its parts is in flight any more.
    pub(crate) fn is_done(&self) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Over && state.closed >= state.parts
    }

    /// Waits until the claim must be written without an outcome, or until this time.
    pub(crate) async fn due(&self, other: Option<tokio::time::Instant>) {
        let at = self.due_at().into_iter().map(tokio::time::Instant::from).chain(other).min();
        let time = async {
            match at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = time => {}
            () = self.changed.notified() => {}
        }
    }

    fn due_at(&self) -> Option<Instant> {
        let state = self.state.lock();
        let is_now = state.needs_mark || state.phase == Phase::Ending && state.claim.kind != Kind::List;
        let at = if is_now { Instant::now() } else { state.written + SILENCE };
        (state.phase != Phase::Over).then_some(at)
    }

    /// Renews, ends or lists the claim, or raises its mark, if it is time to.
    pub(crate) async fn keep(&self, session: &mut Session) {
        while self.due_at().is_some_and(|at| at <= Instant::now()) {
            if self.write(session, &[], Way::OneByOne).await.is_err() {
                session.pause().await;
                self.ask(session, &[]).await.ok();
            }
        }
    }

    /// The parts in flight, but for these.
    fn parts(&self, token: u64, group: &[Finished]) -> Vec<Arc<Tenure>> {
        let mut parts = self.context.leases.of_lane(self.lane);
        parts.retain(|part| part.stands && part.lease.lease_token == token);
        parts.retain(|part| group.iter().all(|finished| finished.lease() != part.lease));
        parts
    }

    /// Splits off the parts that may be settled in one round trip. Of each key the earlier part is settled first, because a replay
    /// follows the order of settlements.
    pub(crate) fn in_order(&self, finished: Vec<Finished>) -> (Vec<Finished>, Vec<Finished>) {
        let (token, phase) = {
            let state = self.state.lock();
            (state.claim.lease.lease_token, state.phase)
        };
        let mut parts = self.parts(token, &[]);
        // An abandoned part is left to its lease.
        parts.retain(|part| phase != Phase::Over && !part.is_abandoned());
        let sizes: HashMap<_, _> = finished.iter().map(|it| (it.lease(), settle::text_size(it.settlement()))).collect();
        let late = behind(&parts, &sizes);
        finished.into_iter().partition(|finished| !late.contains(&finished.lease()))
    }

    /// Settles parts, and replaces the claim by its successor. Returns the parts if they are settled; none if the claim is lost.
    pub(crate) async fn write(
        &self,
        session: &mut Session,
        group: &[Finished],
        way: Way,
    ) -> Result<Vec<ClaimLease>, sqlx::Error> {
        let settled = self.settled(group);
        if !settled.is_empty() {
            // An earlier settlement had these parts and others, and its reply was lost.
            return Ok(settled);
        }
        let Some((claim, next)) = self.next(group) else { return Ok(Vec::new()) };
        let (owner, lease, settlement) = (&self.context.owner, self.context.config.relay.lease, merged(group));
        let settle = async |db: &mut _| {
            send("mid_settle", standing::settle(db, owner, (claim, &settlement), (&next, lease), way)).await
        };
        let found = session.run("settle", settle).await?;
        self.became(&found, group);
        let settled = self.settled(group);
        if settled.len() < group.len() && found.claim.is_some() {
            return Err(sqlx::Error::Protocol("the standing claim has another successor".to_owned()));
        }
        Ok(settled)
    }

    /// Asks for the outcome of a settlement. Returns the parts that are settled.
    pub(crate) async fn ask(&self, session: &mut Session, group: &[Finished]) -> Result<Vec<ClaimLease>, sqlx::Error> {
        let (claim, phase) = {
            let state = self.state.lock();
            (state.claim.lease, state.phase)
        };
        if phase != Phase::Over {
            let found =
                session.run("settled", async |db| standing::found(db, &self.context.owner, claim).await).await?;
            self.became(&found, group);
        }
        Ok(self.settled(group))
    }

    /// Chooses the successor. `None` if the claim is over.
    fn next(&self, group: &[Finished]) -> Option<(ClaimLease, Next)> {
        let mut state = self.state.lock();
        if state.phase == Phase::Over {
            return None;
        }
        let claim = state.claim.lease;
        let now = Instant::now();
        let open = self.parts(claim.lease_token, group);
        if open.is_empty() && group.is_empty() && state.taken + SILENCE <= now {
            if state.phase == Phase::Open {
                state.rest = Duration::ZERO;
            }
            state.end();
        }
        // Another relay may have the sink or route of these messages: it gets its turn when they are due again.
        let delayed = group.iter().flat_map(|finished| &finished.settlement().delayed);
        if let Some(wait) = delayed.filter(|it| ELSEWHERE.contains(&it.reason)).filter_map(|it| it.wait).max() {
            state.rest = state.rest.max(wait + REST);
            state.end();
        }
        let last_mark = state.sent.iter().filter_map(|sent| sent.mark).max().unwrap_or(state.claim.mark);
        let mut mark = last_mark + 1;
        let next = if state.claim.kind == Kind::Open && state.phase == Phase::Open {
            state.measure(now);
            mark = mark.max(state.seen + state.ahead);
            Next::Standing { mark, low: state.low }
        } else {
            state.end();
            let mut ids: Vec<u64> = open.iter().flat_map(|part| &part.ids).copied().collect();
            let mut keys: Vec<u64> = open.iter().flat_map(|part| &part.keys).copied().collect();
            for numbers in [&mut ids, &mut keys] {
                numbers.sort_unstable();
                numbers.dedup();
            }
            if ids.is_empty() { Next::End } else { Next::List { ids, keys, mark } }
        };
        state.sent.push(Sent { mark: next.mark(), at: now, parts: group.iter().map(Finished::lease).collect() });
        Some((claim, next))
    }

    /// Takes over the state that the database has.
    fn became(&self, found: &Found, group: &[Finished]) {
        let mut state = self.state.lock();
        let token = state.claim.lease.lease_token;
        let open = self.parts(token, group);
        let executed = state.became(found);
        if let Some(sent) = &executed {
            *self.until.lock() = sent.at + self.context.config.relay.lease;
        }
        if found.claim.is_none() {
            if executed.is_none() {
                tracing::warn!(lane = self.lane, "the standing claim was lost: another relay sends its messages again");
            }
            self.leave(&mut state);
            // Its parts must not be published.
            let lost = self.parts(token, &[]).iter().filter(|part| part.lose()).count();
            self.context.metrics.leases_lost_total.inc_by(u64::from(lost > 0));
        }
        if state.claim.kind != Kind::Open {
            state.end();
        }
        let is_rest = group.is_empty() || executed.is_some();
        if state.claim.kind == Kind::List && is_rest && !open.is_empty() && open.iter().all(|part| part.is_abandoned())
        {
            // It is left to its lease, with those of its parts that cannot be settled.
            self.leave(&mut state);
        }
    }

    /// Takes the parts of a group that are settled.
    fn settled(&self, group: &[Finished]) -> Vec<ClaimLease> {
        let is_here = |lease: &mut ClaimLease| group.iter().any(|finished| finished.lease() == *lease);
        self.state.lock().settled.extract_if(.., is_here).collect()
    }

    /// Ends all writing of the claim.
    fn leave(&self, state: &mut State) {
        state.phase = Phase::Over;
        self.context.leases.end_standing(state.claim.lease.lease_token);
    }
}
