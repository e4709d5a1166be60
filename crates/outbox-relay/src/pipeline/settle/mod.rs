//! The settlers: write the outcomes of claims back, many claims in one round trip.

mod finished;
mod tries;

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use futures_util::{FutureExt as _, future::BoxFuture};
use outbox_core::{
    sqlx,
    store::{
        claim::lease::{self, ClaimLease},
        refusal::refusal,
        settle::{self, Settlement, Way},
    },
};
use tokio::sync::{Mutex, mpsc};

pub(crate) use self::finished::Finished;
use self::tries::{MAX_LOCK_WAITS, Next, Tries};
use crate::{
    pipeline::tail::Tail,
    state::{context::Context, crash, session::Session},
};

/// A claim that is settled, lost or abandoned. The publisher gives it to its chains: what blocks keys because of this
/// claim ends with the passes that have begun by then.
pub struct Settled {
    /// Its number and token.
    pub lease: ClaimLease,
    /// The pass of its claimer that had begun last at that time.
    pub pass: u64,
}

/// The time for which a settler waits for more claims. No message waits for it, and a commit costs the server as much
/// as a hundred rows.
const LINGER: Duration = Duration::from_millis(40);
/// The same under a tail, where no claim waits for a place either.
const LINGER_OF_TAIL: Duration = Duration::from_millis(100);
/// This many messages are worth a commit: a wait for more would only keep room from new ones.
const ENOUGH: usize = 2000;
/// Most claims of one round trip.
const MAX_CLAIMS: usize = 32;
/// The same of the parts of a tail, which are settled as one claim.
pub(super) const MAX_PARTS: usize = 1000;
/// Most bytes of one round trip: far below the smallest `max_allowed_packet` in use.
pub(super) const MAX_TEXT: usize = 2 << 20;
/// The pause before a settler tries one of its locked claims again: a try takes a second, and the queue waits
/// meanwhile.
const LOCKED_PAUSE: Duration = Duration::from_secs(2);

/// One settler; several share a queue.
pub(crate) struct Settler {
    /// The shared state.
    pub context: Arc<Context>,
    /// Claims to be settled.
    pub queue: Arc<Mutex<mpsc::UnboundedReceiver<Finished>>>,
    /// Reports settled, lost and abandoned claims to the publisher.
    pub settled: mpsc::UnboundedSender<Settled>,
    /// The tail whose parts it settles; `None`: claims of their own.
    pub tail: Option<Arc<Tail>>,
}

impl Settler {
    /// Settles until the publisher has ended and the queue is empty.
    pub(crate) async fn run(self) {
        let mut session = Session::new(&self.context);
        let mut locked = VecDeque::new();
        let mut again_at = tokio::time::Instant::now();
        // Parts of a tail that are behind others.
        let mut behind = Vec::new();
        loop {
            // The queue of a tail does not end.
            if locked.is_empty() && self.tail.as_ref().is_some_and(|tail| tail.is_done()) {
                break;
            }
            let again = (!locked.is_empty()).then_some(again_at);
            let soon = (!behind.is_empty()).then(|| tokio::time::Instant::now() + LINGER);
            let mut group = self.collect(self.time(again.into_iter().chain(soon).min())).await;
            if group.is_empty() && locked.is_empty() && self.tail.is_none() {
                break;
            }
            if let Some(tail) = &self.tail {
                behind.extend(group);
                (group, behind) = tail.in_order(behind);
                if !locked.is_empty() {
                    tail.end("locked");
                }
                if group.is_empty() {
                    tail.keep(&mut session).await;
                }
            }
            if !group.is_empty() {
                crash::point("before_settle");
                locked.extend(self.settle(&mut session, group, MAX_LOCK_WAITS).await);
            }
            let is_time = again_at <= tokio::time::Instant::now() || self.context.stop.is_cancelled();
            let next = locked.iter().position(|it| !it.is_behind(&locked));
            if is_time && let Some(finished) = next.and_then(|at| locked.remove(at)) {
                let still = self.settle(&mut session, vec![finished], 1).await;
                let pause = if still.is_empty() { Duration::ZERO } else { LOCKED_PAUSE };
                again_at = tokio::time::Instant::now() + pause;
                locked.extend(still);
            }
        }
    }

    /// Waits until there is something to do beside the queue: a locked claim at `again`, at a stop at once, or a tail.
    fn time(&self, again: Option<tokio::time::Instant>) -> Option<BoxFuture<'_, ()>> {
        match &self.tail {
            Some(tail) => Some(tail.due(again).boxed()),
            None => again
                .map(|again| self.context.stop.run_until_cancelled(tokio::time::sleep_until(again)).map(drop).boxed()),
        }
    }

    /// Waits for a claim, and then shortly for more. Returns none at `time`, or if the queue has ended.
    async fn collect(&self, time: Option<BoxFuture<'_, ()>>) -> Vec<Finished> {
        let is_timed = time.is_some();
        let mut time = time.unwrap_or_else(|| std::future::pending().boxed());
        let received = async {
            let mut queue = self.queue.lock().await;
            let first = queue.recv().await;
            (queue, first)
        };
        let (mut queue, first) = tokio::select! {
            biased;
            received = received => received,
            () = &mut time => return Vec::new(),
        };
        let Some(first) = first else {
            drop(queue);
            if is_timed {
                time.await;
            }
            return Vec::new();
        };
        let mut text = settle::text_size(&first.settlement);
        let mut messages = first.tenure.ids.len();
        let mut group = vec![first];
        let linger = match self.tail {
            _ if self.context.stop.is_cancelled() => Duration::ZERO,
            Some(_) => LINGER_OF_TAIL,
            None => LINGER,
        };
        let until = tokio::time::Instant::now() + linger;
        let most = if self.tail.is_some() { MAX_PARTS } else { MAX_CLAIMS };
        while group.len() < most && text < MAX_TEXT && messages < ENOUGH {
            let Ok(Some(more)) = tokio::time::timeout_at(until, queue.recv()).await else { break };
            text += settle::text_size(&more.settlement);
            messages += more.tenure.ids.len();
            group.push(more);
        }
        group
    }

    /// Settles a group. Retries until the database has answered for each claim, but for those that have waited for a
    /// lock this number of times: returns these.
    async fn settle(&self, session: &mut Session, group: Vec<Finished>, mut most_waits: u32) -> Vec<Finished> {
        let mut groups = VecDeque::from([group]);
        let mut locked = Vec::new();
        while let Some(mut group) = groups.pop_front() {
            if group.iter().any(|finished| finished.is_behind(&locked)) {
                locked.extend(group);
                continue;
            }
            let mut tries = Tries::default();
            loop {
                group = self.settle_once(session, group, &mut tries).await;
                match tries.next(group.len(), most_waits) {
                    Next::Again => continue,
                    Next::Done => {}
                    Next::Split => {
                        group.sort_unstable_by_key(Finished::lease);
                        groups.extend(group.into_iter().map(|finished| vec![finished]));
                        most_waits = 1;
                    }
                    Next::PutAside => {
                        let claim_id = group.first().map(|finished| finished.tenure.claim_id);
                        tracing::warn!(claim_id, "another session has locked a row of a claim, which is settled later");
                        locked.extend(group);
                    }
                    Next::Abandon => group.iter().for_each(|finished| self.abandon(finished)),
                }
                break;
            }
        }
        locked
    }

    /// Writes the outcomes of a group, and closes the claims that have ended. Returns the others: those that are as
    /// before.
    async fn settle_once(&self, session: &mut Session, group: Vec<Finished>, tries: &mut Tries) -> Vec<Finished> {
        let started = Instant::now();
        let written = self.write(session, &group, tries.way()).await;
        let is_written = written.is_ok();
        let group = match written {
            Ok(settled) => self.close(group, &settled, started),
            Err(error) => {
                self.observe("error", started);
                tries.note(refusal(&error));
                session.pause().await;
                group
            }
        };
        let settled = loop {
            match self.already_settled(session, &group).await {
                Ok(settled) => break settled,
                Err(_) => session.pause().await,
            }
        };
        let group = self.close(group, &settled, started);
        if !is_written {
            return group;
        }
        self.close_lost(group, started);
        Vec::new()
    }

    async fn write(&self, session: &mut Session, group: &[Finished], way: Way) -> Result<Vec<ClaimLease>, sqlx::Error> {
        if let Some(tail) = &self.tail {
            return tail.write(session, group, way).await;
        }
        let (empty, full): (Vec<_>, Vec<_>) = group.iter().partition(|finished| finished.is_empty());
        let mut standing = Vec::new();
        if !full.is_empty() {
            let claims: Vec<_> = full.iter().map(|finished| (finished.lease(), &finished.settlement)).collect();
            standing =
                session.run("settle", async |db| send("mid_settle", settle::settle(db, &claims, way)).await).await?;
        }
        if !empty.is_empty() {
            let leases: Vec<ClaimLease> = empty.iter().map(|finished| finished.lease()).collect();
            let released = session.run("release", async |db| lease::release(db, &leases).await).await?;
            // A lost claim is not there either way, and there was nothing to write for it. An earlier try may have
            // released it, and a worker may have committed without a reply.
            if way == Way::Ranges && self.context.role.shares_keys() {
                let missing = (leases.len() as u64).saturating_sub(released);
                let unnoticed = empty.iter().filter(|finished| !finished.tenure.is_lost()).count() as u64;
                self.context.metrics.leases_lost_total.inc_by(missing.min(unnoticed));
            }
            standing.extend(leases);
        }
        Ok(standing)
    }

    /// Returns the claims that are settled already. An attempt with a lost reply settled them, perhaps only while the
    /// next one waited for it.
    async fn already_settled(&self, session: &mut Session, group: &[Finished]) -> Result<Vec<ClaimLease>, sqlx::Error> {
        if group.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(tail) = &self.tail {
            return tail.ask(session, group).await;
        }
        let leases: Vec<ClaimLease> = group.iter().map(Finished::lease).collect();
        session.run("settled", async |db| settle::settled(db, &leases).await).await
    }

    /// Leaves a claim that the server refuses to its lease: the relay that takes it over counts an attempt for each
    /// message.
    fn abandon(&self, finished: &Finished) {
        tracing::error!(claim_id = finished.tenure.claim_id, "a claim cannot be settled: it is left to its lease");
        finished.tenure.abandon();
        self.tail.iter().for_each(|tail| tail.end("error"));
        self.tell(finished);
        self.trace(finished, "abandoned");
    }

    /// Closes the claims of a group that have ended; returns the others.
    fn close(&self, group: Vec<Finished>, ended: &[ClaimLease], started: Instant) -> Vec<Finished> {
        let (done, open): (Vec<_>, Vec<_>) = group.into_iter().partition(|finished| ended.contains(&finished.lease()));
        for finished in done {
            count(&self.context, &finished.settlement);
            self.observe("settled", started);
            self.forget(&finished);
            self.trace(&finished, "settled");
        }
        open
    }

    /// Closes claims that are neither live nor settled.
    fn close_lost(&self, group: Vec<Finished>, started: Instant) {
        for finished in group {
            if finished.tenure.is_abandoned() {
                self.abandon(&finished);
                continue;
            }
            self.lost(&finished);
            self.observe("lost", started);
            self.forget(&finished);
            self.trace(&finished, "lost");
        }
    }

    fn forget(&self, finished: &Finished) {
        self.context.alive("settle");
        self.context.leases.remove(finished.lease());
        read_on(&self.context, finished.tenure.lane, &finished.queued);
        if !self.context.role.shares_keys() {
            // Its keys are free.
            self.context.nudge.notify_waiters();
        }
        self.tell(finished);
    }

    fn tell(&self, finished: &Finished) {
        let lease = finished.lease();
        if let Some(tail) = &self.tail {
            return tail.closed(lease);
        }
        let pass = finished.last_pass.load(Ordering::Acquire);
        // No receiver: the relay is ending.
        self.settled.send(Settled { lease, pass }).ok();
    }

    /// Notes a lost claim: it was taken over, so the fence let nothing be written.
    fn lost(&self, finished: &Finished) {
        let sent = finished.settlement.sent.len();
        self.context.metrics.possible_duplicates_total.with_label_values(&["takeover"]).inc_by(sent as u64);
        if finished.tenure.lose() {
            self.context.metrics.leases_lost_total.inc();
        }
        tracing::warn!(
            claim_id = finished.tenure.claim_id,
            sent,
            "the lease was lost before the claim was settled: nothing was written, and its messages are sent again"
        );
    }

    fn trace(&self, finished: &Finished, outcome: &'static str) {
        if let (Some(traces), Some(trace)) = (&self.context.traces, &finished.trace) {
            traces.claim(trace, &finished.settlement, outcome);
        }
    }

    fn observe(&self, outcome: &str, started: Instant) {
        let seconds = started.elapsed().as_secs_f64();
        self.context.metrics.settle_duration_seconds.with_label_values(&[outcome]).observe(seconds);
    }
}

/// Asks for the queues of these keys after a settlement. Whatever the outcomes, a queue may have nothing before it now.
pub(crate) fn read_on(context: &Context, lane: u16, keys: &[u64]) {
    for key in keys {
        context.queues.want_first((lane, *key));
    }
}

/// Counts the outcomes of a settlement.
pub(crate) fn count(context: &Context, settlement: &Settlement) {
    let metrics = &context.metrics;
    for delayed in &settlement.delayed {
        metrics.retries_scheduled_total.with_label_values(&[delayed.reason.word()]).inc();
    }
    for dead in &settlement.dead {
        metrics.dead_messages_total.with_label_values(&[dead.reason]).inc();
        tracing::warn!(id = dead.id, reason = dead.reason, error = dead.error, "a message is dead");
    }
}

/// Sends a request. A test can let the process die at `point`, after the request is sent and before the reply is read.
pub(crate) async fn send<T>(point: &'static str, request: impl Future<Output = T>) -> T {
    let mut request = std::pin::pin!(request);
    if crash::is(point) {
        // One poll writes the request to the socket.
        request.as_mut().now_or_never();
        crash::point(point);
    }
    request.await
}
