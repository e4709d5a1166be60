//! A sink on a thread of its own. A call that blocks its thread holds up this sink alone, and is named.

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    task::unconstrained,
    time::timeout_at,
};

use super::{GRACE, KeyOrder, Outcome, Outgoing, PublishError, Sink};

/// The time that a close may take.
const CLOSING: Duration = Duration::from_secs(5);

type ApartJob = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// A sink that blocks, or may block, the thread of its calls.
pub(super) struct Apart {
    name: String,
    sink: Arc<dyn Sink>,
    /// The thread, from the first call on.
    jobs: OnceLock<mpsc::UnboundedSender<ApartJob>>,
    /// The failed batches that the sink has returned, and those that the caller knows of.
    failed: Arc<AtomicU64>,
    known: AtomicU64,
}

/// A call without an answer before its deadline.
enum Missed {
    /// An earlier call blocks the thread.
    NotBegun,
    NotEnded,
}

impl Apart {
    pub(super) fn new(name: &str, sink: Arc<dyn Sink>) -> Self {
        let jobs = OnceLock::new();
        let failed = Arc::default();
        let known = AtomicU64::new(0);
        Self { name: name.to_owned(), sink, jobs, failed, known }
    }

    /// Calls the sink on its thread. Calls begin there in the order of their first polls here.
    async fn call<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Missed> {
        let (reply, answer) = oneshot::channel();
        let begun = Arc::new(AtomicBool::new(false));
        let has_begun = Arc::clone(&begun);
        let call = async move {
            if !has_begun.swap(true, SeqCst) {
                reply.send(AssertUnwindSafe(work).catch_unwind().await).ok();
            }
        };
        // It fails if the system has no thread left.
        self.jobs.get_or_init(|| start(&self.name)).send(Box::new(|| call.boxed())).ok();
        match timeout_at(deadline.into(), answer).await {
            Ok(Ok(answer)) => Ok(answer.unwrap_or_else(|panic| resume_unwind(panic))),
            _ if begun.swap(true, SeqCst) => {
                tracing::error!(sink = self.name, "the sink did not keep its deadline: it may block its thread");
                Err(Missed::NotEnded)
            }
            _ => Err(Missed::NotBegun),
        }
    }

    fn blocked(&self) -> PublishError {
        PublishError::Unavailable(format!("the sink {} blocks its thread: an earlier call has not ended", self.name))
    }
}

/// Starts a thread that works on calls together, as an async thread does.
fn start(name: &str) -> mpsc::UnboundedSender<ApartJob> {
    let (sender, mut jobs) = mpsc::unbounded_channel::<ApartJob>();
    let runtime = Handle::current();
    let work = async move {
        let mut calls = FuturesUnordered::new();
        loop {
            tokio::select! {
                job = jobs.recv() => {
                    let Some(job) = job else { return };
                    let mut call = job();
                    if unconstrained(call.as_mut()).now_or_never().is_none() {
                        calls.push(call);
                    }
                }
                Some(()) = calls.next() => {}
            }
        }
    };
    let thread = std::thread::Builder::new().name(format!("sink {name}"));
    if let Err(error) = thread.spawn(move || runtime.block_on(work)) {
        tracing::error!(sink = name, %error, "the sink gets no thread");
    }
    sender
}

/// Whether a later message of the same key may not pass.
fn holds_others(outcome: &Outcome) -> bool {
    !matches!(outcome, Ok(_) | Err(PublishError::Rejected { .. }))
}

#[async_trait]
impl Sink for Apart {
    fn key_order(&self, message: &Outgoing) -> KeyOrder {
        self.sink.key_order(message)
    }

    async fn publish(&self, batch: &[Outgoing], deadline: Instant) -> Vec<Outcome> {
        let count = batch.len();
        let batch = batch.to_vec();
        let sink = Arc::clone(&self.sink);
        let failed = Arc::clone(&self.failed);
        let known = self.known.load(SeqCst);
        let work = async move {
            let is_pipelined = batch.first().is_some_and(|first| sink.key_order(first) != KeyOrder::OneInFlight);
            // The caller handed the batch in before it could know of a failure that the sink has returned.
            let outcomes = if is_pipelined && failed.load(SeqCst) > known {
                vec![Err(PublishError::TurnedAway("an earlier batch failed".to_owned())); batch.len()]
            } else {
                let outcomes = sink.publish(&batch, deadline).await;
                failed.fetch_add(u64::from(outcomes.iter().any(holds_others)), SeqCst);
                outcomes
            };
            (outcomes, failed.load(SeqCst))
        };
        match self.call(deadline + GRACE / 2, work).await {
            Ok((outcomes, failed)) => {
                self.known.fetch_max(failed, SeqCst);
                outcomes
            }
            Err(Missed::NotBegun) => vec![Err(self.blocked()); count],
            Err(Missed::NotEnded) => {
                let late = "the sink returned no outcome before the deadline";
                vec![Err(PublishError::Unconfirmed(late.to_owned())); count]
            }
        }
    }

    async fn check(&self, deadline: Instant) -> Result<(), PublishError> {
        let sink = Arc::clone(&self.sink);
        self.call(deadline + GRACE / 2, async move { sink.check(deadline).await })
            .await
            .unwrap_or_else(|_missed| Err(self.blocked()))
    }

    async fn close(&self) {
        let sink = Arc::clone(&self.sink);
        // A sink that does not end has been named.
        self.call(Instant::now() + CLOSING, async move { sink.close().await }).await.ok();
    }
}
