//! The shop's own observations, in memory: the ledger of enqueued messages, and all arrivals.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use outbox_consumer::{
    Delivery, Metrics,
    prometheus::{self, Registry, TextEncoder},
};
use outbox_core::{Contents, Event, Uuid};
use testkit::{
    consume::{Arrival, Sending},
    judge::Consumed,
    ledger::{Draft, Ledger, Opened},
    relay,
};

use crate::{consumers::Role, events::Order, orders::now};

/// Of what age the latencies on the screen are at most.
const RECENT: Duration = Duration::from_secs(2);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The events of the run, for the screen.
#[derive(Debug)]
pub(crate) struct Board {
    start: Instant,
    notes: Mutex<Vec<(Duration, String)>>,
}

impl Default for Board {
    fn default() -> Self {
        Self { start: Instant::now(), notes: Mutex::default() }
    }
}

impl Board {
    /// Notes that something happened now.
    pub(crate) fn note(&self, what: impl Into<String>) {
        lock(&self.notes).push((self.elapsed(), what.into()));
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// All notes but the first `known`.
    pub(crate) fn notes_after(&self, known: usize) -> Vec<(Duration, String)> {
        lock(&self.notes).iter().skip(known).cloned().collect()
    }
}

/// The order service's count.
#[derive(Debug, Default)]
pub(crate) struct Sales {
    board: Arc<Board>,
    tickets: AtomicU64,
    count: Mutex<SalesCount>,
    ledger: Ledger,
    messages: Mutex<Vec<(Uuid, u64)>>,
}

/// Orders so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SalesCount {
    /// Committed.
    pub(crate) committed: u64,
    /// Rolled back on purpose.
    pub(crate) rolled_back: u64,
    /// Failed: the outcome is what the table says.
    pub(crate) failed: u64,
}

/// The message of an event as a handler must get it: with the topic of the outbox, whatever the topic or queue at the
/// broker is.
pub(crate) fn draft<E: Event>(id: Uuid, event: &E, number: u64) -> Result<Draft> {
    let payload = event.payload().map_err(|error| anyhow!(error))?;
    let draft = Draft { id, ..Draft::new(E::TOPIC, payload) }.described(E::TYPE, E::CONTENT_TYPE);
    Ok(draft.key(event.key().unwrap_or_default(), number))
}

impl Sales {
    pub(crate) fn new(board: &Arc<Board>) -> Self {
        Self { board: Arc::clone(board), ..Self::default() }
    }

    pub(crate) fn next_ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Relaxed)
    }

    /// Writes an order's messages into the ledger, before its transaction ends.
    pub(crate) fn open(&self, order: u64, drafts: &[Draft]) -> Opened {
        lock(&self.messages).extend(drafts.iter().map(|draft| (draft.id, order)));
        self.ledger.open(drafts)
    }

    /// Counts an order: whether it was paid.
    pub(crate) fn ended(&self, order: Result<bool>) {
        let count = &mut *lock(&self.count);
        match order {
            Ok(true) => count.committed += 1,
            Ok(false) => count.rolled_back += 1,
            Err(error) => {
                count.failed += 1;
                if count.failed == 1 {
                    self.board.note(format!("an order failed: {error:#}"));
                }
            }
        }
    }

    pub(crate) fn count(&self) -> SalesCount {
        *lock(&self.count)
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The messages, each with its order.
    pub(crate) fn messages(&self) -> Vec<(Uuid, u64)> {
        lock(&self.messages).clone()
    }
}

/// The arrivals of a consumer.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) role: Role,
    pub(crate) metrics: Metrics,
    pub(crate) registry: Registry,
    arrivals: Mutex<Vec<Arrival>>,
    latencies: Mutex<VecDeque<(Instant, Duration)>>,
}

impl Intake {
    pub(crate) fn new(role: Role) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry)?;
        Ok(Self { role, metrics, registry, arrivals: Mutex::default(), latencies: Mutex::default() })
    }

    /// A message that the inbox did not know.
    pub(crate) fn arrived(&self, message: &Delivery, order: &Order) {
        let age = Duration::from_micros(now().saturating_sub(order.placed_at));
        lock(&self.latencies).push_back((Instant::now(), age));
        let Contents { topic, key, event_type, content_type, headers, payload } = message.contents.clone();
        lock(&self.arrivals).push(Arrival {
            id: message.id,
            topic,
            outbox_topic: None,
            key,
            event_type,
            content_type,
            headers,
            payload,
            place: String::new(),
            // The handler is called again after a failure.
            redelivered: true,
        });
    }

    /// The latest messages, to be sent once more.
    pub(crate) fn latest(&self, most: usize) -> Vec<Sending> {
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        let sending = |it: &Arrival| Sending {
            id: Some(it.id),
            key: it.key.as_ref().map(text),
            headers: Vec::new(),
            payload: it.payload.as_ref().map(text).unwrap_or_default(),
        };
        lock(&self.arrivals).iter().rev().take(most).map(sending).collect()
    }

    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        lock(&self.arrivals).clone()
    }

    /// The counts of the consumer's own metrics.
    pub(crate) fn count(&self) -> Consumed {
        let text = TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default();
        Consumed::of(&[relay::Metrics::parse(&text)], true)
    }

    /// Half of the latest messages, and 99 % of them, took no longer from the order to the consumer.
    pub(crate) fn latency(&self) -> Option<(Duration, Duration)> {
        let mut latencies = lock(&self.latencies);
        while latencies.front().is_some_and(|(at, _)| at.elapsed() > RECENT) {
            latencies.pop_front();
        }
        let mut recent: Vec<Duration> = latencies.iter().map(|(_, latency)| *latency).collect();
        recent.sort_unstable();
        Some((*recent.get(recent.len() / 2)?, *recent.get(recent.len() * 99 / 100)?))
    }
}
