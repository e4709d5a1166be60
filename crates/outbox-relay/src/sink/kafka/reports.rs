//! Delivery reports of librdkafka, gathered by batch.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Instant,
};

use parking_lot::{Mutex, MutexGuard};
use rdkafka::{
    ClientContext, Message as _,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode},
    message::DeliveryResult,
    producer::ProducerContext,
};
use tokio::{sync::Notify, time::timeout_at};

use super::{
    cluster::Cluster,
    fence::{Fence, Ticket},
    outcome,
    throttling::Throttling,
    written::Written,
};
use crate::sink::{Outcome, Outgoing, PublishError, progress::Progress};

// The number that each message carries through librdkafka has a pointer's width and holds two 32-bit numbers.
const _: () = assert!(usize::BITS == 64, "the Kafka sink needs a 64-bit platform");

/// The outcome of one message that was handed to librdkafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// Nothing yet.
    None,
    /// The broker has it.
    Sent { partition: i32, offset: i64 },
    /// The broker has a later one, from which librdkafka infers that it has this one: see [`super::written`].
    Implied,
    /// It failed, or its outcome is unknown.
    Failed(RDKafkaErrorCode),
}

/// The reports of one batch, and one wake-up after the last of them.
#[derive(Debug)]
pub(super) struct BatchReports {
    reports: Mutex<Vec<Report>>,
    keys: Vec<u64>,
    progress: Option<Progress>,
    /// Reports still to come, and one more until all messages are handed over.
    left: AtomicUsize,
    done: Notify,
    failed: AtomicBool,
}

impl BatchReports {
    fn new(messages: &[&Outgoing]) -> Self {
        Self {
            reports: Mutex::new(vec![Report::None; messages.len()]),
            left: AtomicUsize::new(messages.len() + 1),
            keys: messages.iter().map(|message| message.key_hash).collect(),
            progress: messages.first().and_then(|message| message.progress.clone()),
            done: Notify::new(),
            failed: AtomicBool::new(false),
        }
    }

    fn record(&self, index: usize, report: Report) {
        if let Some(slot) = self.reports.lock().get_mut(index) {
            *slot = report;
        }
        if matches!(report, Report::Sent { .. }) {
            self.progress.iter().for_each(|progress| progress.confirmed(Instant::now()));
        }
        self.count_down(1);
    }

    fn count_down(&self, by: usize) {
        if by > 0 && self.left.fetch_sub(by, Ordering::AcqRel) == by {
            self.done.notify_one();
        }
    }
}

/// The batches in flight. librdkafka's threads find them by the number that each message carries.
#[derive(Debug, Default)]
pub(super) struct Reports {
    batches: Mutex<HashMap<u32, Arc<BatchReports>>>,
    next: AtomicU32,
    /// The last trouble of a connection, in librdkafka's words: addresses and causes, no credentials.
    trouble: Mutex<Option<String>>,
    throttling: Throttling,
    cluster: Cluster,
    written: Mutex<Written>,
    pub(super) fence: Fence,
}

impl Reports {
    /// Opens a batch of these messages.
    pub(super) fn open(self: &Arc<Self>, messages: &[&Outgoing]) -> OpenBatch {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let batch = Arc::new(BatchReports::new(messages));
        self.batches.lock().insert(number, Arc::clone(&batch));
        OpenBatch { reports: Arc::clone(self), number, batch }
    }

    /// Waits until messages are given up, at most until the deadline; returns whether that was enough. A purge may wait
    /// for a thread that resolves a host name. It goes on, and nothing is handed over before its end: it would take
    /// messages of a later batch, and the next of their keys would overtake them. The caller keeps other batches out
    /// until this returns.
    pub(super) async fn closed_during(
        self: &Arc<Self>,
        purge: impl Future<Output = ()> + Send + 'static,
        deadline: Instant,
    ) -> bool {
        let mut purge = tokio::spawn(purge);
        if timeout_at(deadline.into(), &mut purge).await.is_ok() {
            return true;
        }
        let closed = self.open(&[]);
        closed.fail();
        tokio::spawn(async move {
            purge.await.ok();
            drop(closed);
        });
        false
    }

    /// Notes that brokers and topics must be asked again.
    pub(super) fn doubt(&self) {
        self.written().doubt();
    }

    /// Returns the last trouble of a connection.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// Returns why the brokers answer late, if they throttle this client.
    pub(super) fn throttling(&self) -> Option<String> {
        self.throttling.explain()
    }

    /// Adds the throttling to an outcome that it may have caused.
    pub(super) fn explained(&self, outcome: Outcome) -> Outcome {
        match (outcome, self.throttling()) {
            (Err(PublishError::Unconfirmed(text)), Some(why)) => {
                Err(PublishError::Unconfirmed(format!("{why} ({text})")))
            }
            (outcome, _) => outcome,
        }
    }

    /// Notes the cluster that answers. Nothing is known of another one.
    pub(super) fn answered(&self, cluster: Option<&str>) {
        if cluster.is_some_and(|id| self.cluster.note(id)) {
            self.written().forget();
        }
    }

    /// Returns the knowledge of topics and keys.
    pub(super) fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock()
    }

    fn fail(&self, batch: &BatchReports) {
        if !batch.failed.swap(true, Ordering::SeqCst) {
            self.fence.close();
        }
    }

    /// Notes that a message is no longer in flight.
    pub(super) fn done(&self, topic: &str, key_hash: u64, opaque: usize, report: Report) {
        let partition = if let Report::Sent { partition, .. } = report { Some(partition) } else { None };
        self.written().reported(topic, key_hash, opaque, partition);
    }

    fn failed(&self, (number, batch): (u32, &BatchReports), code: RDKafkaErrorCode, topic: &str) {
        if outcome::is_missing_topic(code) {
            let mut written = self.written();
            written.missing(topic);
            written.doubt();
        }
        match outcome::reported(code) {
            // A rejected message has no place in the order of its key. Messages that shared its fate are sent again at
            // once.
            PublishError::Rejected { .. } => {}
            _ if outcome::is_shared_fate(code) => {}
            error @ PublishError::Unroutable { .. } => self.fence.refuse(topic, number, error),
            // All messages in flight are given up, of every batch, and nothing is handed over meanwhile.
            _ if outcome::is_given_up(code) => {
                self.fence.refuse(topic, number, turned_away("its topic confirms nothing"));
            }
            _ => self.fail(batch),
        }
    }
}

/// A batch that is being published; dropped when its outcomes go back to the caller.
pub(super) struct OpenBatch {
    reports: Arc<Reports>,
    number: u32,
    batch: Arc<BatchReports>,
}

impl OpenBatch {
    /// Whether a message with this number is of this batch.
    fn has(&self, opaque: usize) -> bool {
        opaque >> 32 == self.number as usize
    }

    /// Returns the number that the message with this index carries through librdkafka.
    pub(super) fn opaque(&self, index: usize) -> usize {
        ((self.number as usize) << 32) | index
    }

    /// Notes that a message for this topic is not handed over: no later one for the topic may overtake it.
    pub(super) fn refuse(&self, topic: &str, error: &PublishError) {
        self.reports.fence.refuse(topic, self.number, error.clone());
    }

    /// Returns why a message for this topic is turned away, if it is.
    pub(super) fn refusal(&self, topic: &str, ticket: Ticket) -> Option<PublishError> {
        self.reports.fence.refusal(topic, self.number, ticket)
    }

    /// Notes that at least one message surely or possibly did not arrive: no later batch may overtake it.
    pub(super) fn fail(&self) {
        self.reports.fail(&self.batch);
    }

    /// Notes that all messages are handed over but this number, for which no report will come.
    pub(super) fn seal(&self, never_handed_over: usize) {
        self.batch.count_down(never_handed_over + 1);
    }

    /// Waits for the last report.
    pub(super) async fn done(&self) {
        while !self.is_done() {
            self.batch.done.notified().await;
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.batch.left.load(Ordering::Acquire) == 0
    }

    /// Takes the reports so far.
    pub(super) fn take(&self) -> Vec<Report> {
        std::mem::take(&mut self.batch.reports.lock())
    }
}

impl Drop for OpenBatch {
    fn drop(&mut self) {
        self.reports.batches.lock().remove(&self.number);
        self.reports.written().returned(|opaque| self.has(opaque));
        self.reports.fence.give_back(self.number);
        if self.batch.failed.load(Ordering::SeqCst) {
            self.reports.fence.open();
        }
    }
}

/// The callbacks of librdkafka, on the producer's own thread.
pub(super) struct ReportContext(pub(super) Arc<Reports>);

impl ClientContext for ReportContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        if level as i32 <= RDKafkaLogLevel::Warning as i32 {
            tracing::warn!(target: "librdkafka", facility, "{text}");
        } else {
            tracing::debug!(target: "librdkafka", facility, "{text}");
        }
    }

    fn stats_raw(&self, figures: &[u8]) {
        self.0.throttling.note(figures, Instant::now());
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, "{reason}");
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
            self.0.doubt();
        } else {
            *self.0.trouble.lock() = Some(reason.to_owned());
        }
    }
}

impl ProducerContext for ReportContext {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let number = u32::try_from(opaque >> 32).unwrap_or_default();
        let Some(batch) = self.0.batches.lock().get(&number).cloned() else { return };
        let index = opaque & u32::MAX as usize;
        let (topic, report) = match result {
            Ok(message) if message.offset() < 0 => {
                self.0.fail(&batch);
                (message.topic(), Report::Implied)
            }
            Ok(message) => (message.topic(), Report::Sent { partition: message.partition(), offset: message.offset() }),
            Err((error, message)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
                self.0.failed((number, &batch), code, message.topic());
                (message.topic(), Report::Failed(code))
            }
        };
        // Only after a failure has closed the fence.
        let key = batch.keys.get(index).copied().unwrap_or_default();
        self.0.done(topic, key, opaque, report);
        batch.record(index, report);
    }
}

pub(super) fn turned_away(why: &str) -> PublishError {
    PublishError::TurnedAway(why.to_owned())
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Arc,
        time::{Duration, Instant},
    };

    use tokio::sync::oneshot;

    use super::Reports;

    #[tokio::test]
    async fn nothing_is_handed_over_before_a_late_purge_has_ended() {
        let reports = Arc::new(Reports::default());
        let admits = || reports.fence.pass(reports.fence.ticket(), || ()).is_some();
        let (end, purge) = oneshot::channel::<()>();
        let purge = async { purge.await.unwrap_or_default() };
        let deadline = Instant::now() + Duration::from_millis(1);
        assert!(!reports.closed_during(purge, deadline).await);
        assert!(!admits());
        end.send(()).unwrap();
        while !admits() {
            tokio::task::yield_now().await;
        }
        assert!(reports.closed_during(async {}, Instant::now() + Duration::from_secs(60)).await && admits());
    }
}
