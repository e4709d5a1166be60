//! The tail of a lane that this process has: its claim, what it has taken, and its settlement.

pub(crate) mod lane;
mod parts;
mod state;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use outbox_core::{
    sqlx,
    store::{
        claim::{
            Pending,
            lease::ClaimLease,
            tail::{self, ClaimKind, FoundTail, NextClaim, TailClaim},
        },
        reason::WaitsFor,
        settle::{self, Way},
    },
};
use parking_lot::Mutex;
use tokio::sync::{Notify, futures::Notified, mpsc};

use self::{
    parts::{behind, merged},
    state::{IDLE, SILENCE, SentPart, TailPhase, TailState},
};
use crate::{
    pipeline::settle::{Finished, Settled, send},
    state::{context::Context, leases::Tenure, session::Session},
};

/// The time without a tail after one that ended for a reason.
pub(crate) const REST: Duration = Duration::from_secs(10);

/// A tail. Its parts are rows that were taken together. They are published like claims, and are settled together.
pub(crate) struct Tail {
    context: Arc<Context>,
    lane: u16,
    until: Arc<Mutex<Instant>>,
    state: Mutex<TailState>,
    /// Something is to be written.
    changed: Notify,
    /// Something was written.
    written: Notify,
    finished: mpsc::UnboundedSender<Finished>,
    settled: mpsc::UnboundedSender<Settled>,
    last_pass: Arc<AtomicU64>,
}

impl Tail {
    /// Begins with a claim that was made after this moment. Finished parts go to `finished`, and settled ones to
    /// `settled`.
    pub(crate) fn new(
        context: &Arc<Context>,
        (lane, claim): (u16, TailClaim),
        until: Instant,
        (finished, settled): (mpsc::UnboundedSender<Finished>, mpsc::UnboundedSender<Settled>),
        last_pass: &Arc<AtomicU64>,
    ) -> Self {
        let until = Arc::new(Mutex::new(until));
        context.leases.stand(claim.lease, &until);
        Self {
            context: Arc::clone(context),
            lane,
            until,
            state: Mutex::new(TailState::new(claim)),
            changed: Notify::new(),
            written: Notify::new(),
            finished,
            settled,
            last_pass: Arc::clone(last_pass),
        }
    }

    /// Returns the queue of the settler of its parts.
    pub(crate) fn settler(&self) -> mpsc::UnboundedSender<Finished> {
        self.finished.clone()
    }

    /// Returns the claim now.
    pub(crate) fn claim(&self) -> TailClaim {
        self.state.lock().claim
    }

    /// Opens it, above ids that were seen. Returns whether it is open.
    pub(crate) async fn open(&self, seen: u64) -> bool {
        {
            let mut state = self.state.lock();
            state.seen = state.seen.max(seen);
            state.measured = (state.seen, Instant::now());
            if state.phase == TailPhase::Forming {
                state.phase = TailPhase::Opening;
            }
        }
        self.changed.notify_one();
        self.until(|state| state.phase >= TailPhase::Open).await;
        self.is_open()
    }

    /// Waits until what was written makes this true.
    async fn until(&self, is: impl Fn(&TailState) -> bool) {
        loop {
            let written = self.written.notified();
            if is(&self.state.lock()) {
                return;
            }
            written.await;
        }
    }

    /// Waits until something is written from now on.
    pub(crate) fn written(&self) -> Notified<'_> {
        self.written.notified()
    }

    /// Notes the largest id that the stream has shown, and whether a row is above the mark.
    pub(crate) fn saw(&self, seen: u64, is_late: bool) {
        let mut state = self.state.lock();
        state.seen = state.seen.max(seen);
        if is_late && !state.needs_mark {
            state.needs_mark = true;
            self.changed.notify_one();
        }
    }

    /// Notes that the stream has shown the end of this own claim, and that all rows from before are taken: those do not
    /// know of the failures that were settled with the claim.
    pub(crate) fn showed(&self, claim_id: u64) {
        let parts = {
            let mut state = self.state.lock();
            if claim_id > state.shown { state.show(claim_id) } else { Vec::new() }
        };
        for lease in parts {
            self.tell(lease);
        }
    }

    /// Tells the publisher that a part is settled, and that its failures hold their keys without it: rows that the
    /// stream shows from now on are taken by what it has shown.
    fn tell(&self, lease: ClaimLease) {
        // No receiver: the relay is ending.
        self.settled.send(Settled { lease, pass: self.last_pass.load(Ordering::Acquire) }).ok();
    }

    /// How long the log has not shown a settlement.
    pub(crate) fn lag(&self) -> Duration {
        self.state.lock().unshown.front().map_or(Duration::ZERO, |settled| settled.at.elapsed())
    }

    /// Takes rows up to the mark, and numbers the pass. The queues of the keys `queued` are read on after them. `None`
    /// if nothing may be taken.
    pub(crate) fn take(&self, rows: &[Pending], queued: Vec<u64>) -> Option<(Arc<Tenure>, u64)> {
        let mut state = self.state.lock();
        if state.phase != TailPhase::Open || state.claim.kind != ClaimKind::Open {
            return None;
        }
        state.taken = Instant::now();
        state.parts += 1;
        let claim = state.claim.lease;
        let lease = ClaimLease { claim_id: state.parts, ..claim };
        let mut part = Tenure::part(lease, claim.claim_id, self.lane, rows, &self.until);
        part.queued = queued;
        let tenure = Arc::new(part);
        // Under the lock: a list of what is in flight has all of it.
        self.context.leases.insert(&tenure);
        // Also under the lock: an end of the tail in another thread lifts the blocks of failures for later passes
        // alone.
        Some((tenure, self.last_pass.fetch_add(1, Ordering::AcqRel) + 1))
    }

    /// Ends the claim for this reason, in one word. It takes nothing more. The rows in flight become a list. The stream
    /// is not read on.
    pub(crate) fn end(&self, why: &'static str) {
        let mut state = self.state.lock();
        if state.phase < TailPhase::Ending {
            state.end(why);
            self.changed.notify_one();
        }
        let parts = state.show(u64::MAX);
        drop(state);
        for lease in parts {
            self.tell(lease);
        }
    }

    /// Waits until it has ended, and what is in flight is a list. Returns how long no tail follows.
    pub(crate) async fn ended(&self) -> Duration {
        self.until(|state| state.phase == TailPhase::Over || state.claim.kind == ClaimKind::List).await;
        self.state.lock().rest
    }

    /// Why it has ended, in one word. What the log shows of an end comes before the reply to a statement.
    pub(crate) fn why(&self) -> &'static str {
        self.state.lock().why.unwrap_or("closed")
    }

    /// Whether it takes rows.
    pub(crate) fn is_open(&self) -> bool {
        let state = self.state.lock();
        state.claim.kind == ClaimKind::Open && state.phase == TailPhase::Open
    }

    /// Notes that a part is settled, lost or abandoned.
    pub(crate) fn closed(&self, lease: ClaimLease) {
        let is_shown = {
            let mut state = self.state.lock();
            state.closed += 1;
            state.unshown.iter().all(|settled| !settled.parts.contains(&lease))
        };
        if is_shown {
            self.tell(lease);
        }
    }

    /// Whether it is over, and none of its parts is in flight any more.
    pub(crate) fn is_done(&self) -> bool {
        let state = self.state.lock();
        state.phase == TailPhase::Over && state.closed >= state.parts
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
        let is_now = state.needs_mark
            || state.phase == TailPhase::Opening
            || state.phase == TailPhase::Ending && state.claim.kind != ClaimKind::List;
        let at = if is_now { Instant::now() } else { state.written + SILENCE };
        (state.phase != TailPhase::Over).then_some(at)
    }

    /// Renews, opens, ends or lists the claim, or raises its mark, if it is time to.
    pub(crate) async fn keep(&self, session: &mut Session) {
        let is_due = self.due_at().is_some_and(|at| at <= Instant::now());
        if is_due && self.write(session, &[], Way::OneByOne).await.is_err() {
            session.pause().await;
            self.ask(session, &[]).await.ok();
        }
    }

    /// The parts in flight, but for these.
    fn parts(&self, token: u64, group: &[Finished]) -> Vec<Arc<Tenure>> {
        let mut parts = self.context.leases.of_lane(self.lane);
        parts.retain(|part| part.is_part && part.lease.lease_token == token);
        parts.retain(|part| group.iter().all(|finished| finished.lease() != part.lease));
        parts
    }

    /// Splits off the parts that may be settled in one round trip. Of each key the earlier part is settled first,
    /// because a replay follows the order of settlements.
    pub(crate) fn in_order(&self, finished: Vec<Finished>) -> (Vec<Finished>, Vec<Finished>) {
        let (token, phase) = {
            let state = self.state.lock();
            (state.claim.lease.lease_token, state.phase)
        };
        let mut parts = self.parts(token, &[]);
        // An abandoned part is left to its lease.
        parts.retain(|part| phase != TailPhase::Over && !part.is_abandoned());
        let sizes: HashMap<_, _> = finished.iter().map(|it| (it.lease(), settle::text_size(it.settlement()))).collect();
        let late = behind(&parts, &sizes);
        finished.into_iter().partition(|finished| !late.contains(&finished.lease()))
    }

    /// Settles parts, and replaces the claim by its successor. Returns the parts if they are settled; none if the claim
    /// is lost.
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
        let owner = &self.context.owner;
        let lease = self.context.config.relay.lease;
        let settlement = merged(group);
        let settle = async |db: &mut _| {
            let text = tail::settle(db, (owner, self.lane), (claim, &settlement), (&next, lease), way);
            send("mid_settle", text).await
        };
        let found = session.run("settle", settle).await?;
        self.became(&found, group);
        let settled = self.settled(group);
        if settled.len() < group.len() && found.claim.is_some() {
            return Err(sqlx::Error::Protocol("the tail has another successor".to_owned()));
        }
        Ok(settled)
    }

    /// Asks for the outcome of a settlement. Returns the parts that are settled.
    pub(crate) async fn ask(&self, session: &mut Session, group: &[Finished]) -> Result<Vec<ClaimLease>, sqlx::Error> {
        let (claim, phase) = {
            let state = self.state.lock();
            (state.claim.lease, state.phase)
        };
        if phase != TailPhase::Over {
            let found = session.run("settled", async |db| tail::found(db, &self.context.owner, claim).await).await?;
            self.became(&found, group);
        }
        Ok(self.settled(group))
    }

    /// Chooses the successor. `None` if the claim is over.
    fn next(&self, group: &[Finished]) -> Option<(ClaimLease, NextClaim)> {
        let mut state = self.state.lock();
        if state.phase == TailPhase::Over {
            return None;
        }
        let claim = state.claim.lease;
        let now = Instant::now();
        let open = self.parts(claim.lease_token, group);
        if open.is_empty() && group.is_empty() && state.phase == TailPhase::Open && state.taken + IDLE <= now {
            state.rest = Duration::ZERO;
            state.end("idle");
        }
        // Another relay may have the sink or route of these messages: it gets its turn when they are due again.
        let delayed = group.iter().flat_map(|finished| &finished.settlement().delayed);
        if let Some(wait) =
            delayed.filter(|it| it.reason.waits_for() == WaitsFor::Destination).filter_map(|it| it.wait).max()
        {
            state.rest = state.rest.max(wait + REST);
            state.end("elsewhere");
        }
        // A released row is pending as before, and the log does not show it again.
        if group.iter().any(Finished::releases) {
            state.end("released");
        }
        let last_mark = state.sent.iter().filter_map(|sent| sent.mark).max().unwrap_or(state.claim.mark);
        state.measure(now);
        let mark = (last_mark + 1).max(state.seen + state.ahead);
        let next = match (state.phase, state.claim.kind) {
            (TailPhase::Opening, ClaimKind::Forming) => NextClaim::Open(mark),
            (TailPhase::Forming, ClaimKind::Forming) => NextClaim::Same(last_mark + 1),
            (TailPhase::Open, ClaimKind::Open) => NextClaim::Same(mark),
            _ => {
                state.end("closed");
                let mut ids: Vec<u64> = open.iter().flat_map(|part| &part.ids).copied().collect();
                let mut keys: Vec<u64> = open.iter().flat_map(|part| &part.keys).copied().collect();
                for numbers in [&mut ids, &mut keys] {
                    numbers.sort_unstable();
                    numbers.dedup();
                }
                if ids.is_empty() { NextClaim::End } else { NextClaim::List { ids, keys, mark: last_mark + 1 } }
            }
        };
        state.sent.push(SentPart { mark: next.mark(), at: now, parts: group.iter().map(Finished::lease).collect() });
        Some((claim, next))
    }

    /// Takes over the state that the database has.
    fn became(&self, found: &FoundTail, group: &[Finished]) {
        let mut state = self.state.lock();
        let token = state.claim.lease.lease_token;
        let open = self.parts(token, group);
        let executed = state.became(found);
        if found.claim.is_some() {
            self.context.leases.stand(state.claim.lease, &self.until);
        }
        if let Some(sent) = &executed {
            *self.until.lock() = sent.at + self.context.config.relay.lease;
        }
        if found.claim.is_none() {
            if executed.is_none() {
                tracing::warn!(lane = self.lane, "the tail was lost: its messages are sent again");
            }
            self.leave(&mut state);
            // Its parts must not be published.
            let lost = self.parts(token, &[]).iter().filter(|part| part.lose()).count();
            self.context.metrics.leases_lost_total.inc_by(u64::from(lost > 0));
        }
        match state.claim.kind {
            ClaimKind::Open if state.phase == TailPhase::Opening => state.phase = TailPhase::Open,
            ClaimKind::Open | ClaimKind::Forming => {}
            ClaimKind::Closed | ClaimKind::List => state.end("closed"),
        }
        let is_rest = group.is_empty() || executed.is_some();
        if state.claim.kind == ClaimKind::List
            && is_rest
            && !open.is_empty()
            && open.iter().all(|part| part.is_abandoned())
        {
            // It is left to its lease, with those of its parts that cannot be settled.
            self.leave(&mut state);
        }
        self.written.notify_waiters();
    }

    /// Takes the parts of a group that are settled.
    fn settled(&self, group: &[Finished]) -> Vec<ClaimLease> {
        let is_here = |lease: &mut ClaimLease| group.iter().any(|finished| finished.lease() == *lease);
        self.state.lock().settled.extract_if(.., is_here).collect()
    }

    /// Ends all writing of the claim.
    fn leave(&self, state: &mut TailState) {
        state.end("lost");
        state.phase = TailPhase::Over;
        self.context.leases.end_standing(state.claim.lease.lease_token);
    }
}

#[cfg(test)]
mod tests;
