//! The claims of a worker: each runs in a task of its own.

use std::{collections::HashMap, sync::Arc, time::Instant};

use outbox_consumer::{Failure, Handler};
use outbox_core::store::settle::{
    Settlement,
    losses::{Loss, Losses, Streak},
};
use parking_lot::Mutex;
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    NAME,
    ahead::Ahead,
    turn::{CommittedWork, Turn, Undone},
};
use crate::{
    error::RunError,
    pipeline::{
        claim::Claimed,
        read::{ReadClaim, Reader},
        retry::{self, DelayReason, Disposition, Policy},
        settle::{self, Finished},
    },
    settings::{AfterDead, OnRejected},
    sink::PublishError,
    state::context::Context,
};

pub(super) struct Claims<H> {
    pub(super) context: Arc<Context>,
    pub(super) ahead: Ahead,
    pub(super) reader: Reader,
    pub(super) handler: H,
    /// The database of the login; a handler may leave the session in another one.
    pub(super) database: Option<String>,
    pub(super) after_dead: AfterDead,
    /// Receives claims whose transaction was rolled back: a settler writes what follows from that.
    pub(super) finished: mpsc::UnboundedSender<Finished>,
    pub(super) losses: Losses,
    /// The messages whose last outcome here was a loss.
    pub(super) streaks: Mutex<HashMap<u64, Streak>>,
}

/// Most messages whose losses are remembered: after that all begin anew, also those that another process has done.
const MOST_STREAKS: usize = 10_000;

impl<H: Handler> Claims<H> {
    /// Works until the claimers have stopped and everything in flight is finished.
    pub(super) async fn run(self, mut claims: mpsc::Receiver<Claimed>) -> Result<(), RunError> {
        let all = Arc::new(self);
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                claimed = claims.recv() => match claimed {
                    Some(claimed) => {
                        let all = Arc::clone(&all);
                        tasks.spawn(async move { all.work(claimed).await });
                    }
                    None => break,
                },
                Some(ended) = tasks.join_next() => ended?,
            }
        }
        while let Some(ended) = tasks.join_next().await {
            ended?;
        }
        Ok(())
    }

    async fn work(&self, claimed: Claimed) {
        // The age of messages that came with the claim counts from now on.
        let (claimed, brought) = if claimed.messages.is_some() {
            let ReadClaim { claimed, messages } = self.reader.read(claimed).await;
            (claimed, Some(messages))
        } else {
            (claimed, None)
        };
        let turn = self.context.stop.run_until_cancelled(self.ahead.turn()).await;
        let Some(Some(_turn)) = turn else { return self.put_back(claimed, Settlement::default()) };
        let ReadClaim { claimed, messages } = match brought {
            Some(messages) => ReadClaim { claimed, messages },
            None => self.reader.read(claimed).await,
        };
        let in_flight = &self.context.metrics.in_flight_messages;
        let count = i64::try_from(messages.len()).unwrap_or(0);
        in_flight.add(count);
        let mut session = self.reader.sessions.take().await;
        let began = Instant::now();
        let outcome = Turn::new(self, &mut session, &claimed).run(messages).await;
        in_flight.sub(count);
        if outcome.is_err() {
            // The end of the connection rolls the transaction back, whatever the state of the connection.
            session.hang_up();
        }
        drop(session);
        match outcome {
            Ok(done) => {
                self.ahead.took(began.elapsed());
                self.committed(&claimed, &done, began);
            }
            Err(Undone::Lost) => self.lost(&claimed),
            Err(Undone::Settle(settlement)) => self.put_back(claimed, settlement),
        }
        // A key or a place is free.
        self.context.nudge.notify_waiters();
    }

    /// Lets a settler write what follows, for a claim without a transaction.
    fn put_back(&self, claimed: Claimed, settlement: Settlement) {
        let queued = claimed.tenure.queued.clone();
        // The settlers outlive the claims.
        self.finished.send(Finished::new(claimed, settlement, queued, None)).ok();
    }

    fn committed(&self, claimed: &Claimed, done: &CommittedWork, began: Instant) {
        self.context.leases.remove(claimed.tenure.lease);
        settle::read_on(&self.context, claimed.tenure.lane, &claimed.tenure.queued);
        settle::count(&self.context, &done.settlement);
        for (id, _) in &done.settlement.sent {
            self.losses.done();
            self.streaks.lock().remove(id);
        }
        let metrics = &self.context.metrics;
        metrics.published_messages_total.with_label_values(&[NAME]).inc_by(done.settlement.sent.len() as u64);
        metrics.publish_duration_seconds.with_label_values(&[NAME]).observe(began.elapsed().as_secs_f64());
        for due_at in &done.due_at {
            metrics.delivery_latency_seconds.observe(due_at.elapsed().as_secs_f64());
        }
        self.context.alive("settle");
    }

    /// Notes a lost claim: another process took it over, so the fence let nothing be committed.
    fn lost(&self, claimed: &Claimed) {
        self.context.leases.remove(claimed.tenure.lease);
        settle::read_on(&self.context, claimed.tenure.lane, &claimed.tenure.queued);
        if claimed.tenure.lose() {
            self.context.metrics.leases_lost_total.inc();
        }
        tracing::warn!(
            claim_id = claimed.tenure.lease.claim_id,
            messages = claimed.rows.len(),
            "the lease was lost before the commit: the work is rolled back, and another process does it again"
        );
    }

    /// Notes that the connection or the statement of a message's work was ended. Returns how often that was so in a
    /// row, and the failure: one that spends an attempt, if the message is the cause.
    pub(super) fn lose(&self, id: u64, loss: Loss, failure: Failure) -> (u32, Failure) {
        let mut streaks = self.streaks.lock();
        if streaks.len() >= MOST_STREAKS {
            streaks.clear();
        }
        let streak = streaks.entry(id).or_default();
        let failure = if self.losses.lost(streak, loss) { streak.tell(&failure).into() } else { failure };
        (streak.length, failure)
    }

    /// Returns the outcome of a message whose work failed. `attempts` were spent before.
    pub(super) fn decide(&self, failure: &Failure, topic: &str, attempts: u16) -> Disposition {
        let (on_rejected, reason) = match failure {
            Failure::Dead(_) => (OnRejected::Dead, "refused"),
            Failure::Retry(_) if !failure.is_passing() => (OnRejected::Retry, "failed"),
            Failure::After(wait) => {
                let wait = (*wait).min(Failure::LONGEST_AFTER);
                return Disposition::Delay { wait, spent: false, reason: DelayReason::Snoozed };
            }
            Failure::Retry(_) | Failure::Requeue(_) => {
                self.count_failure(topic, "unavailable");
                return self.park(attempts);
            }
        };
        self.count_failure(topic, reason);
        let policy = Policy { on_rejected, after_dead: self.after_dead, retry: self.context.config.retry };
        let error = PublishError::Rejected { reason, detail: String::new() };
        retry::decide(&error, attempts, policy, rand::random())
    }

    /// Returns the outcome of a message that is not the cause of a failure: it waits, without a spent attempt.
    pub(super) fn park(&self, attempts: u16) -> Disposition {
        let wait = retry::wait(attempts, &self.context.config.retry, rand::random());
        Disposition::Delay { wait, spent: false, reason: DelayReason::Parked }
    }

    fn count_failure(&self, topic: &str, reason: &str) {
        let metrics = &self.context.metrics;
        metrics.publish_failures_total.with_label_values(&[NAME, metrics.destination(topic), reason]).inc();
    }
}
