//! One message, from its arrival to its decision.

use std::{io, panic::AssertUnwindSafe};

use futures_util::FutureExt as _;
use outbox_core::{
    Claim, Inbox, InboxError, InboxTransaction, REPLAY_HEADER, Sequence,
    sqlx::{self, MySqlConnection, MySqlPool},
    store::{
        inbox::{DeadDelivery, delete_dead, insert_dead, insert_dead_mark},
        settle::losses::{Loss, Losses, Streak, loss, loss_of_handler},
    },
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Delivery, Failure, Handler, crash, lines,
    metrics::age,
    options::Options,
    retry::NextTry,
    sequence::{self, SequenceStep},
    starts::{ALONE, MOST, Starts},
    unfinished::{MessageProgress, Unfinished},
};

/// The answer to the broker about a message.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Done: processed now or before, or kept as dead in the table.
    Done,
    /// Dead: it goes to the broker's place for dead messages.
    Dead(Obituary),
    /// Another consumer may try.
    Requeue,
    /// No answer yet: it is retried behind the others of its key.
    Later,
    /// No answer: it comes again.
    Undecided,
}

/// Why a message is dead.
#[derive(Debug)]
pub(crate) struct Obituary {
    pub(crate) reason: &'static str,
    pub(crate) error: String,
    pub(crate) attempts: u32,
}

/// Why a message was not processed this time.
enum Unprocessed {
    Failed(Failure),
    /// The call or its connection was ended.
    Lost(Failure, Loss),
    /// The inbox did not answer, which is never the message's fault.
    NotTried(InboxError),
    /// An earlier message of its key is missing.
    Early,
    /// It is dead for this reason, whatever its handler says.
    Dead(&'static str, String),
}

impl<E: Into<Failure>> From<E> for Unprocessed {
    fn from(failure: E) -> Self {
        Self::Failed(failure.into())
    }
}

/// The shared parts of all messages in flight.
pub(crate) struct Processor<H> {
    pub(crate) inbox: Inbox,
    pub(crate) pool: MySqlPool,
    pub(crate) handler: H,
    pub(crate) options: Options,
    /// One permit for each message that may be at work.
    pub(crate) at_work: Semaphore,
    pub(crate) can_requeue: bool,
    /// Dead messages go to the broker, not to the table.
    pub(crate) broker_buries: bool,
    /// The number of returns after which RabbitMQ drops a message; 0 if it never does.
    pub(crate) delivery_limit: u32,
    pub(crate) starts: Starts,
    pub(crate) unfinished: Unfinished,
    pub(crate) losses: Losses,
}

impl<H: Handler> Processor<H> {
    pub(crate) fn consumer(&self) -> &str {
        self.inbox.consumer()
    }

    /// Tries until the message has a decision, or `stop` is cancelled between two attempts.
    pub(crate) async fn process(&self, delivery: &mut Delivery, stop: &CancellationToken) -> Decision {
        let mut progress = self.unfinished.take(delivery.id);
        delivery.attempt = delivery.attempt.max(progress.attempt);
        // The queue may drop it before its wait is over.
        if self.is_near_its_limit(delivery) {
            progress.until = Instant::now();
        }
        let decision = self.decide(delivery, &mut progress, stop).await;
        if matches!(decision, Decision::Undecided) {
            self.unfinished.keep(delivery.id, MessageProgress { attempt: delivery.attempt, ..progress });
        }
        decision
    }

    async fn decide(
        &self,
        delivery: &mut Delivery,
        progress: &mut MessageProgress,
        stop: &CancellationToken,
    ) -> Decision {
        loop {
            if stop.run_until_cancelled(sleep_until(progress.until)).await.is_none() {
                return Decision::Undecided;
            }
            let Some(outcome) = self.attempt(delivery, stop).await else { return Decision::Undecided };
            let failures = &mut progress.failures;
            *failures += 1;
            let (failure, next) = match self.charge(outcome, &mut progress.streak) {
                Ok(()) => return Decision::Done,
                Err(Unprocessed::Early) => {
                    return self.pause(*failures, stop).await.map_or(Decision::Undecided, |()| Decision::Later);
                }
                Err(Unprocessed::Dead(reason, error)) => {
                    let obituary = Obituary { reason, error, attempts: delivery.attempt };
                    return self.give_up(delivery, obituary, stop).await;
                }
                Err(Unprocessed::NotTried(error)) => (Failure::from(error), NextTry::Again { counted: false }),
                Err(Unprocessed::Failed(failure) | Unprocessed::Lost(failure, _)) => {
                    let next = self.options.retry.next(&failure, delivery.attempt, self.can_requeue);
                    let is_last =
                        !matches!(next, NextTry::Again { counted: false }) && self.is_near_its_limit(delivery);
                    (failure, if is_last { NextTry::Dead("returned") } else { next })
                }
            };
            let wait = match next {
                NextTry::Dead(reason) => {
                    let error = failure.to_string();
                    let attempts = delivery.attempt;
                    return self.give_up(delivery, Obituary { reason, error, attempts }, stop).await;
                }
                NextTry::Requeue => {
                    self.note("requeued", delivery, &failure);
                    let failures = failures.saturating_add(delivery.deliveries);
                    return self.pause(failures, stop).await.map_or(Decision::Undecided, |()| Decision::Requeue);
                }
                NextTry::Again { counted } => {
                    self.note("failed", delivery, &failure);
                    delivery.attempt += u32::from(counted);
                    self.options.retry.wait(*failures)
                }
                NextTry::After(wait) => {
                    *failures -= 1;
                    self.options.metrics.count(self.consumer(), "snoozed");
                    tracing::debug!(message_id = %delivery.id, consumer = self.consumer(), ?wait, "a message is tried \
                                                                                                   again later");
                    wait
                }
            };
            progress.until = Instant::now() + wait;
        }
    }

    /// Notes an outcome. A loss that is the message's own becomes a failure that spends an attempt.
    fn charge(&self, outcome: Result<(), Unprocessed>, streak: &mut Streak) -> Result<(), Unprocessed> {
        match outcome {
            Err(Unprocessed::Lost(failure, loss)) if self.losses.lost(streak, loss) => {
                return Err(Failure::from(streak.tell(&failure)).into());
            }
            Err(Unprocessed::Lost(..)) => {}
            Ok(()) => self.losses.done(),
            Err(_) => *streak = Streak::default(),
        }
        outcome
    }

    /// Whether RabbitMQ may drop the message while it waits: connections and processes end now and then.
    fn is_near_its_limit(&self, delivery: &Delivery) -> bool {
        self.delivery_limit > 0 && delivery.returns >= self.delivery_limit - self.delivery_limit / 4
    }

    /// One attempt; `None` if it was stopped while it waited for its turn.
    async fn attempt(&self, delivery: &mut Delivery, stop: &CancellationToken) -> Option<Result<(), Unprocessed>> {
        if stop.is_cancelled() {
            return None;
        }
        let mut permit = stop.run_until_cancelled(self.at_work.acquire()).await?.ok()?;
        if let Some(problem) = delivery.problem {
            return Some(Err(Failure::dead(problem).into()));
        }
        let starts = match self.doubt(delivery).await {
            Ok(Some(starts)) => starts,
            Ok(None) => return Some(self.apply(delivery).await),
            Err(error) => return Some(Err(Unprocessed::NotTried(error))),
        };
        if starts >= MOST {
            delivery.is_guilty = true;
            let error = format!("{starts} processes have ended while they worked on it");
            return Some(Err(Unprocessed::Dead("crashes", error)));
        }
        if starts >= ALONE {
            drop(permit);
            let all = u32::try_from(self.options.concurrency).unwrap_or(u32::MAX);
            permit = stop.run_until_cancelled(self.at_work.acquire_many(all)).await?.ok()?;
        }
        if let Err(error) = self.note_start(delivery, starts).await {
            return Some(Err(Unprocessed::NotTried(error)));
        }
        let outcome = self.apply(delivery).await;
        drop(permit);
        self.survived(delivery.id, outcome.is_ok()).await;
        Some(outcome)
    }

    /// Claims the message, lets the handler do its work, and commits both.
    async fn apply(&self, delivery: &Delivery) -> Result<(), Unprocessed> {
        let admission = self.in_time(self.inbox.admit(&self.pool, delivery.id)).await.map_err(Unprocessed::NotTried)?;
        let Claim::First(mut tx) = admission else {
            self.options.metrics.count(self.consumer(), "duplicate");
            return Ok(());
        };
        let (seen, step) = self.in_time(self.follow(&mut tx, delivery)).await.map_err(Unprocessed::NotTried)?;
        match step {
            SequenceStep::Process => {}
            SequenceStep::Wait => {
                self.undo(tx).await.ok();
                return Err(Unprocessed::Early);
            }
            SequenceStep::Refuse => {
                self.undo(tx).await.ok();
                self.tell(delivery, seen, step);
                return Err(Unprocessed::Dead("sequence", "its number is not the next one of its key".to_owned()));
            }
        }
        let limit = self.options.deadline;
        let handling = AssertUnwindSafe(async { self.handler.handle(&mut tx, delivery).await }).catch_unwind();
        match timeout(limit, handling).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(failure))) => {
                return Err(lost(failure, self.undo(tx).await.err().as_ref()));
            }
            Ok(Err(_panic)) => return Err(Failure::from("the handler panicked").into()),
            Err(_elapsed) => return Err(Failure::from(format!("the handler took longer than {limit:?}")).into()),
        }
        // The inbox may have forgotten that the message is dead.
        if self.is_late(delivery) || delivery.header(REPLAY_HEADER).is_some() {
            let deleted = self.in_time(async { Ok(delete_dead(&mut tx, self.consumer(), delivery.id).await?) }).await;
            deleted.map_err(Unprocessed::NotTried)?;
        }
        crash::point("before_commit");
        self.in_time(tx.commit()).await.map_err(|error| match cause(&error).and_then(loss) {
            Some(loss) => Unprocessed::Lost(error.into(), loss),
            None => error.into(),
        })?;
        crash::point("before_acknowledge");
        self.tell(delivery, seen, step);
        self.options.metrics.count(self.consumer(), "first");
        self.options.metrics.age(self.consumer(), delivery.enqueued_at);
        Ok(())
    }

    /// Rolls a transaction back. Its findings hold, even if a statement has lost the connection.
    pub(crate) async fn undo(&self, tx: InboxTransaction) -> Result<(), InboxError> {
        let undone = self.in_time(tx.rollback()).await;
        undone.inspect_err(|error| tracing::debug!(%error, "a transaction ends with its connection"))
    }

    /// A host that has vanished sends neither a reply nor an error. A call that times out here ends with its
    /// connection.
    pub(crate) async fn in_time<T>(&self, call: impl Future<Output = Result<T, InboxError>>) -> Result<T, InboxError> {
        let reply = timeout(self.options.deadline, call).await;
        reply.unwrap_or_else(|elapsed| Err(sqlx::Error::Io(io::Error::from(elapsed)).into()))
    }

    /// Runs calls of the database in a transaction of their own.
    pub(crate) async fn in_transaction<T>(
        &self,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, InboxError> {
        let call = Box::pin(async {
            let mut tx = InboxTransaction::begin(&self.pool).await?;
            let done = work(&mut tx).await?;
            tx.commit().await?;
            Ok(done)
        });
        self.in_time(call).await
    }

    /// Notes the number of a sequenced message, and returns the next step.
    async fn follow(
        &self,
        tx: &mut MySqlConnection,
        delivery: &Delivery,
    ) -> Result<(Sequence, SequenceStep), InboxError> {
        let Some((number, key)) = sequence::number(delivery) else {
            return Ok((Sequence::Next, SequenceStep::Process));
        };
        let seen = self.inbox.follow(tx, &delivery.contents.topic, key, number).await?;
        Ok((seen, self.options.sequence.step(seen, delivery.received_at.elapsed())))
    }

    /// Reports a message that was processed or refused, and is not the next one of its key: once, however often it was
    /// tried.
    fn tell(&self, delivery: &Delivery, seen: Sequence, step: SequenceStep) {
        if seen != Sequence::Next {
            self.options.metrics.sequence.with_label_values(&[self.consumer(), sequence::word(seen)]).inc();
            if lines::shown(self.consumer(), "a message is not the next one of its key") {
                tracing::warn!(message_id = %delivery.id, topic = delivery.contents.topic, consumer = self.consumer(), ?seen, ?step,
                    "a message is not the next one of its key");
            }
        }
    }

    /// Keeps a dead message in the table and marks it as processed, in one transaction; or leaves it to the broker.
    async fn give_up(&self, delivery: &Delivery, obituary: Obituary, stop: &CancellationToken) -> Decision {
        let Obituary { reason, error, attempts } = &obituary;
        if lines::shown(self.consumer(), "a message is dead") {
            tracing::error!(message_id = %delivery.id, topic = delivery.contents.topic, consumer = self.consumer(),
                place = delivery.place, attempts, reason, error, "a message is dead");
        }
        if self.broker_buries {
            self.options.metrics.count(self.consumer(), "dead");
            return Decision::Dead(obituary);
        }
        let mut failures = 0;
        while let Err(error) = self.in_time(self.bury(delivery, &obituary)).await {
            failures += 1;
            if lines::shown(self.consumer(), "cannot keep the dead message yet") {
                tracing::warn!(message_id = %delivery.id, error = %Failure::from(error), "cannot keep the dead message \
                                                                                          yet");
            }
            if self.pause(failures, stop).await.is_none() {
                return Decision::Undecided;
            }
        }
        self.options.metrics.count(self.consumer(), "dead");
        Decision::Done
    }

    async fn bury(&self, delivery: &Delivery, obituary: &Obituary) -> Result<(), InboxError> {
        let mut tx = InboxTransaction::begin(&self.pool).await?;
        if !insert_dead_mark(&mut tx, self.consumer(), delivery.id).await? {
            return tx.rollback().await;
        }
        let dead = DeadDelivery {
            consumer: self.consumer(),
            message_id: delivery.id,
            contents: &delivery.contents,
            attempts: obituary.attempts,
            reason: obituary.reason,
            error: &obituary.error,
        };
        insert_dead(&mut tx, &dead).await?;
        tx.commit().await
    }

    async fn pause(&self, failures: u32, stop: &CancellationToken) -> Option<()> {
        stop.run_until_cancelled(sleep(self.options.retry.wait(failures))).await
    }

    fn note(&self, result: &'static str, delivery: &Delivery, failure: &Failure) {
        self.options.metrics.count(self.consumer(), result);
        if lines::shown(self.consumer(), "a message was not processed") {
            tracing::warn!(message_id = %delivery.id, topic = delivery.contents.topic, consumer = self.consumer(),
                place = delivery.place, attempt = delivery.attempt, error = %failure, "a message was not processed: \
                                                                                       {result}");
        }
    }

    /// Whether a message is older than the inbox remembers.
    fn is_late(&self, delivery: &Delivery) -> bool {
        let kept = self.options.inbox_retention;
        !kept.is_zero() && delivery.enqueued_at.and_then(age).is_some_and(|age| age > kept)
    }

    /// Warns of a message that is older than the inbox remembers: it may have been processed before.
    pub(crate) fn warn_if_late(&self, delivery: &Delivery) {
        if self.is_late(delivery) {
            self.options.metrics.count(self.consumer(), "late");
            if lines::shown(self.consumer(), "a message is older than the inbox remembers") {
                tracing::warn!(message_id = %delivery.id, topic = delivery.contents.topic, consumer = self.consumer(),
                    "a message is older than the inbox remembers: if it was processed before, it is processed again");
            }
        }
    }
}

/// Returns the outcome of a handler's failure, whose roll-back ended so.
fn lost(failure: Failure, undone: Option<&InboxError>) -> Unprocessed {
    let loss = match &failure {
        Failure::Retry(error) => loss_of_handler(error.as_ref(), undone.and_then(cause)),
        _ => None,
    };
    match loss {
        Some(loss) => Unprocessed::Lost(failure, loss),
        None => failure.into(),
    }
}

fn cause(error: &InboxError) -> Option<&sqlx::Error> {
    if let InboxError::Database(cause) = error { Some(cause) } else { None }
}
