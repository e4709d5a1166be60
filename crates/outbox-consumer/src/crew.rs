//! All messages in flight: tasks, one for each key, and those that wait behind them.

use std::sync::Arc;

use outbox_core::key_hash;
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    ConsumerError, Delivery, Handler,
    keys::Keys,
    process::{Decision, Processor},
    sequence,
};

/// A message's place at its broker: for its acknowledgement.
pub(crate) trait Acknowledge: Send + 'static {
    /// Answers the broker, if it is answered message by message. Returns the decision that is left to carry out.
    fn settle(&self, delivery: &Delivery, decision: Decision) -> impl Future<Output = Decision> + Send;

    /// Notes whether the message waits behind an earlier one of its key.
    fn waits(&self, _delivery: &Delivery, _waits: bool) {}
}

/// A message to process. `stop` ends its waits: the partition or the connection is lost, or the consumer stops.
pub(crate) struct CrewJob<T> {
    pub(crate) delivery: Delivery,
    pub(crate) tag: T,
    pub(crate) stop: CancellationToken,
}

/// A message that is decided.
pub(crate) struct FinishedTask<T> {
    pub(crate) job: CrewJob<T>,
    pub(crate) decision: Decision,
}

pub(crate) struct Crew<H, T> {
    pub(crate) processor: Arc<Processor<H>>,
    /// Ends all waits.
    pub(crate) stop: CancellationToken,
    keys: Keys<u64, CrewJob<T>>,
    tasks: JoinSet<FinishedTask<T>>,
    /// Carries out the orders of operators.
    retries: JoinSet<()>,
    in_flight: i64,
}

impl<H: Handler, T: Acknowledge> Crew<H, T> {
    pub(crate) fn new(processor: Processor<H>) -> Self {
        processor.options.metrics.begin(processor.consumer());
        let processor = Arc::new(processor);
        let stop = CancellationToken::new();
        let mut retries = JoinSet::new();
        let retrying = Arc::clone(&processor);
        let ends = stop.clone();
        retries.spawn(async move { retrying.carry_out_retries(&ends).await });
        Self { processor, stop, keys: Keys::new(), tasks: JoinSet::new(), retries, in_flight: 0 }
    }

    /// Starts a message, now or when the earlier ones of its key are decided.
    pub(crate) fn arrived(&mut self, job: CrewJob<T>) {
        self.count(1);
        self.processor.warn_if_late(&job.delivery);
        job.tag.waits(&job.delivery, true);
        if let Some(job) = self.keys.arrived(order_key(&job.delivery), job) {
            self.start(job);
        }
    }

    fn start(&mut self, mut job: CrewJob<T>) {
        job.tag.waits(&job.delivery, false);
        let processor = Arc::clone(&self.processor);
        self.tasks.spawn(async move {
            let decision = processor.process(&mut job.delivery, &job.stop).await;
            let decision = job.tag.settle(&job.delivery, decision).await;
            if job.delivery.is_guilty && !matches!(decision, Decision::Undecided) {
                processor.survived(job.delivery.id, true).await;
            }
            FinishedTask { job, decision }
        });
    }

    /// Waits for the next message with an outcome; `None` if nothing is in flight. May be cancelled.
    pub(crate) async fn next(&mut self) -> Option<Result<FinishedTask<T>, ConsumerError>> {
        loop {
            let FinishedTask { job, decision } = match self.tasks.join_next().await? {
                Ok(finished) => finished,
                Err(error) => return Some(Err(ConsumerError::Internal(error.to_string()))),
            };
            let key = order_key(&job.delivery);
            if matches!(decision, Decision::Later) {
                // The missing message may be among the later arrivals of the key.
                let number = sequence::number(&job.delivery).map(|(number, _)| number);
                let before = |it: &CrewJob<T>| sequence::number(&it.delivery).map(|(number, _)| number) < number;
                job.tag.waits(&job.delivery, true);
                if let Some(next) = self.keys.later(key.as_ref(), job, before) {
                    self.start(next);
                }
                continue;
            }
            if let Some(next) = self.keys.finished(key.as_ref()) {
                self.start(next);
            }
            self.count(-1);
            return Some(Ok(FinishedTask { job, decision }));
        }
    }

    /// Ends all waits, lets messages at work end, and passes each to `finished`. Messages that do not end in time go on
    /// by themselves: a call of the database must not be cancelled.
    pub(crate) async fn wind_down(&mut self, mut finished: impl FnMut(FinishedTask<T>)) {
        self.stop.cancel();
        let deadline = self.processor.options.stop_deadline;
        let all = async {
            while let Some(ended) = self.next().await {
                match ended {
                    Ok(ended) => finished(ended),
                    Err(error) => tracing::error!(%error, "while stopping"),
                }
            }
            while self.retries.join_next().await.is_some() {}
        };
        if timeout(deadline, all).await.is_err() {
            tracing::warn!(messages = self.tasks.len(), "not all messages were decided within the stop deadline");
            self.tasks.detach_all();
            self.retries.detach_all();
            self.processor.forgive().await;
        }
    }

    fn count(&mut self, change: i64) {
        self.in_flight += change;
        let metrics = &self.processor.options.metrics;
        metrics.in_flight.with_label_values(&[self.processor.consumer()]).set(self.in_flight);
    }
}

/// Messages of one topic with the same key keep their order. Two keys with the same hash do too, which is harmless.
fn order_key(delivery: &Delivery) -> Option<u64> {
    delivery.contents.key.as_ref().map(|key| key_hash(&delivery.contents.topic, Some(key)))
}
