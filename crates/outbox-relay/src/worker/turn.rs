//! One claim's transaction: the work of its messages, one after the other, then their settlement under the claim's
//! fence.
//!
//! A failure that the handler returns is rolled back to the mark before its message, and settled with the others.
//! The end of the transaction (a deadlock, a time-out, a panic) rolls everything back. Then the message that caused it
//! is settled alone, and the others are pending again. In both cases the later messages of its key go back as well: the
//! database itself makes them wait.

use std::{
    collections::HashSet,
    panic::AssertUnwindSafe,
    time::{Duration, Instant, SystemTime},
};

use futures_util::FutureExt as _;
use outbox_consumer::{Delivery, Failure, Handler};
use outbox_core::{
    sqlx,
    store::{
        claim::Pending,
        settle::{
            Settlement,
            losses::{loss, loss_of_handler},
            work::{self, Finish},
        },
    },
};

use super::{NAME, claims::Claims};
use crate::{
    pipeline::{
        claim::Claimed,
        read::{Ready, Step},
        retry::{self, Disposition},
        settle,
    },
    sink::Outgoing,
    state::{
        crash,
        session::{Session, describe},
    },
};

/// The committed part of a claim.
#[derive(Default)]
pub(super) struct CommittedWork {
    pub(super) settlement: Settlement,
    /// The due times of the messages that were done.
    pub(super) due_at: Vec<Instant>,
}

/// The reason why nothing is committed.
pub(super) enum Undone {
    /// Another process has the claim.
    Lost,
    /// This must be written instead; messages not named are pending again.
    Settle(Settlement),
}

impl Undone {
    /// Releases all messages unchanged.
    fn released() -> Self {
        Self::Settle(Settlement::default())
    }

    /// Settles the one message that ended the transaction.
    fn by(id: u64, fate: Disposition, error: String) -> Self {
        let mut settlement = Settlement::default();
        fate.note(&mut settlement, id, error);
        Self::Settle(settlement)
    }
}

pub(super) struct Turn<'a, H> {
    claims: &'a Claims<H>,
    session: &'a mut Session,
    claimed: &'a Claimed,
    began: Instant,
    done: CommittedWork,
    /// Keys whose later messages must wait.
    held: HashSet<u64>,
    /// A message whose work is done, and not kept yet.
    last: Option<Pending>,
}

impl<'a, H: Handler> Turn<'a, H> {
    pub(super) fn new(claims: &'a Claims<H>, session: &'a mut Session, claimed: &'a Claimed) -> Self {
        let began = Instant::now();
        let done = CommittedWork::default();
        let held = HashSet::new();
        Self { claims, session, claimed, began, done, held, last: None }
    }

    /// Works on the messages and commits. The caller closes the connection after an error.
    pub(super) async fn run(mut self, messages: Vec<(Pending, Step)>) -> Result<CommittedWork, Undone> {
        let silence = self.claims.context.config.relay.lease;
        let begun = self.session.run("begin", async |db| work::begin(db, silence).await).await;
        begun.map_err(|error| self.refused(&error))?;
        for (row, step) in messages {
            if !self.message(row, step).await? {
                break;
            }
        }
        self.commit().await?;
        Ok(self.done)
    }

    /// Works on one message. Returns false if it and the following ones go back.
    async fn message(&mut self, row: Pending, step: Step) -> Result<bool, Undone> {
        if self.held.contains(&row.key_hash) {
            return Ok(true);
        }
        let (fate, error) = match step {
            Step::Decided(fate, error) => (fate, error),
            Step::Publish(_) if !self.has_time() => return Ok(false),
            Step::Publish(ready) => {
                self.keep().await?;
                let Ready { outgoing, due_at, .. } = *ready;
                let Some(failed) = self.handle(row, outgoing).await? else {
                    self.done.settlement.sent.push((row.id, NAME.to_owned()));
                    self.done.due_at.push(due_at);
                    self.last = Some(row);
                    return Ok(true);
                };
                failed
            }
        };
        if row.key_hash != 0 && retry::behind(&fate).is_some() {
            self.held.insert(row.key_hash);
        }
        fate.note(&mut self.done.settlement, row.id, error);
        Ok(true)
    }

    /// Whether another message may begin: its work must not outlast the lease, nor the transaction last for ever.
    fn has_time(&self) -> bool {
        let context = &self.claims.context;
        let relay = &context.config.relay;
        let lasts = self.claimed.tenure.lasts(relay.under_lease());
        lasts && self.began.elapsed() < relay.publish_deadline && !context.hurry.is_cancelled()
    }

    /// Keeps the work of the message before.
    async fn keep(&mut self) -> Result<(), Undone> {
        if self.last.is_none() {
            return Ok(());
        }
        let database = self.claims.database.as_deref();
        let kept = self.session.run("keep", async |db| work::keep(db, database).await).await;
        if !kept.map_err(|error| self.refused(&error))? {
            return Err(self.ended());
        }
        self.last = None;
        Ok(())
    }

    /// Lets the handler do its work. Returns `None` on success. Otherwise the work is rolled back, and this is the
    /// message's outcome.
    async fn handle(&mut self, row: Pending, outgoing: Outgoing) -> Result<Option<(Disposition, String)>, Undone> {
        self.count(&outgoing);
        let limit = self.claims.context.config.relay.publish_deadline;
        let delivery = delivery(row, outgoing);
        let handler = &self.claims.handler;
        let message = &delivery;
        let Some(tx) = self.session.connection() else { return Err(Undone::released()) };
        let handling = AssertUnwindSafe(async move { handler.handle(tx, message).await });
        let outcome = tokio::time::timeout(limit, handling.catch_unwind()).await;
        crash::point("after_work");
        let (failure, usable) = match outcome {
            Ok(Ok(Ok(()))) => return Ok(None),
            Ok(Ok(Err(failure))) => (failure, true),
            Ok(Err(_panic)) => (Failure::from("the handler panicked"), false),
            Err(_elapsed) => (Failure::from(format!("the handler took longer than {limit:?}")), false),
        };
        // The next call would finish a call that was cancelled half-way.
        let database = self.claims.database.as_deref();
        let undone =
            if usable { self.session.run("undo", async |db| work::undo(db, database).await).await } else { Ok(false) };
        let failure = self.charge(row, failure, undone.as_ref().err());
        let fate = self.claims.decide(&failure, &delivery.contents.topic, row.attempts);
        let error = failure.to_string();
        if matches!(failure, Failure::After(_)) {
            tracing::debug!(message_id = %delivery.id, ?fate, "the work of a message is put off");
        } else {
            tracing::warn!(
                message_id = %delivery.id, topic = delivery.contents.topic, attempt = delivery.attempt, error, ?fate,
                "the work of a message failed"
            );
        }
        if matches!(undone, Ok(true)) { Ok(Some((fate, error))) } else { Err(Undone::by(row.id, fate, error)) }
    }

    /// Notes whether a failure is a loss. One that is the message's own becomes a failure that spends an attempt.
    fn charge(&self, row: Pending, failure: Failure, undone: Option<&sqlx::Error>) -> Failure {
        let loss = match &failure {
            Failure::Retry(error) => loss_of_handler(error.as_ref(), undone),
            _ => None,
        };
        if let Some(loss) = loss {
            return self.claims.lose(row.id, loss, failure).1;
        }
        self.claims.streaks.lock().remove(&row.id);
        failure
    }

    /// Settles under the fence, and commits.
    async fn commit(&mut self) -> Result<(), Undone> {
        let Settlement { sent, delayed, dead } = &self.done.settlement;
        if sent.is_empty() && delayed.is_empty() && dead.is_empty() {
            return Err(Undone::released());
        }
        // From now on the claim may vanish: a renewal that misses it has lost nothing.
        self.claimed.tenure.settle(true);
        let lease = self.claimed.tenure.lease;
        let settlement = &self.done.settlement;
        let database = self.claims.database.as_deref();
        let finish = self
            .session
            .run("settle", async |db| settle::send("mid_commit", work::finish(db, database, lease, settlement)).await);
        let finish = finish.await.map_err(|error| self.refused(&error))?;
        crash::point("after_commit");
        match finish {
            Finish::Committed => Ok(()),
            Finish::Lost => Err(Undone::Lost),
            Finish::Ended => Err(self.ended()),
        }
    }

    /// Returns what follows from a failed call. If the database refused it, all messages are parked, so that they do
    /// not come back at once. If the database did not answer, they are released: the release waits for a commit that
    /// may be in flight, and does nothing after it. If that is so again and again after the work of the same message,
    /// that message waits, or spends an attempt.
    fn refused(&self, error: &sqlx::Error) -> Undone {
        if let (Some(loss), Some(last)) = (loss(error), self.last) {
            let (length, failure) = self.claims.lose(last.id, loss, Failure::requeue(describe(error)));
            if length > 1 {
                let fate = self.claims.decide(&failure, UNKNOWN, last.attempts);
                return Undone::by(last.id, fate, failure.to_string());
            }
        }
        let mut settlement = Settlement::default();
        if error.as_database_error().is_some() {
            for row in &self.claimed.rows {
                self.claims.park(row.attempts).note(&mut settlement, row.id, describe(error));
            }
        }
        Undone::Settle(settlement)
    }

    /// Returns what follows if the server no longer has the transaction: whatever the last handler returned, its work
    /// is lost.
    fn ended(&self) -> Undone {
        let Some(last) = self.last else { return Undone::released() };
        let failure =
            Failure::from("the transaction has ended: pass errors of the database on, do not commit, use no DDL");
        let fate = self.claims.decide(&failure, UNKNOWN, last.attempts);
        tracing::warn!(id = last.id, error = %failure, ?fate, "the work of a message failed");
        Undone::by(last.id, fate, failure.to_string())
    }

    fn count(&self, outgoing: &Outgoing) {
        let metrics = &self.claims.context.metrics;
        let bytes = outgoing.contents.payload.as_ref().map_or(0, Vec::len);
        let topic = metrics.destination(&outgoing.contents.topic);
        metrics.publish_attempts_total.with_label_values(&[NAME, topic]).inc();
        metrics.published_bytes_total.with_label_values(&[NAME]).inc_by(bytes as u64);
    }
}

/// The topic in the metrics where the transaction has ended: the handler had the message.
const UNKNOWN: &str = "unknown";

/// Returns the message as a handler gets it.
fn delivery(row: Pending, outgoing: Outgoing) -> Delivery {
    let since_1970 = Duration::from_micros(outgoing.created_at_micros.max(0).unsigned_abs());
    let mut delivery = Delivery::new(outgoing.message_id, outgoing.contents);
    delivery.enqueued_at = SystemTime::UNIX_EPOCH.checked_add(since_1970);
    delivery.attempt = u32::from(row.attempts) + 1;
    delivery
}
