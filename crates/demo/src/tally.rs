//! What the shop itself saw, in memory: compared with the database at the end.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use outbox_core::Claim;

use crate::events::Order;

/// One acknowledgement in so many is lost on purpose.
const LOST_ACKNOWLEDGEMENT: u64 = 50;
/// Of what age the latencies on the screen are at most.
const RECENT: Duration = Duration::from_secs(2);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What happened, for the screen.
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
    committed: Mutex<HashMap<u64, Instant>>,
    rolled_back: AtomicU64,
    failed: AtomicU64,
}

impl Sales {
    pub(crate) fn new(board: &Arc<Board>) -> Self {
        Self { board: Arc::clone(board), ..Self::default() }
    }

    pub(crate) fn next_ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Relaxed)
    }

    pub(crate) fn committed(&self, order: u64) {
        lock(&self.committed).insert(order, Instant::now());
    }

    pub(crate) fn rolled_back(&self) {
        self.rolled_back.fetch_add(1, Relaxed);
    }

    pub(crate) fn failed(&self, error: &anyhow::Error) {
        if self.failed.fetch_add(1, Relaxed) == 0 {
            self.board.note(format!("an order failed: {error:#}"));
        }
    }

    pub(crate) fn count(&self) -> SalesCount {
        let committed = lock(&self.committed).len() as u64;
        SalesCount { committed, rolled_back: self.rolled_back.load(Relaxed), failed: self.failed.load(Relaxed) }
    }

    fn age(&self, order: u64) -> Option<Duration> {
        lock(&self.committed).get(&order).map(Instant::elapsed)
    }
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

/// A consumer's count.
#[derive(Debug)]
pub(crate) struct Intake {
    sales: Arc<Sales>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    count: IntakeCount,
    orders: HashSet<u64>,
    last_numbers: HashMap<u64, u64>,
    latencies: VecDeque<(Instant, Duration)>,
}

/// Deliveries so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct IntakeCount {
    /// Deliveries.
    pub(crate) deliveries: u64,
    /// Different orders among them.
    pub(crate) orders: u64,
    /// First deliveries that came after a later order of the same customer.
    pub(crate) out_of_order: u64,
    /// Deliveries that the inbox knew.
    pub(crate) absorbed: u64,
    /// Deliveries whose transaction failed: they came again.
    pub(crate) failed: u64,
    /// Acknowledgements that were lost on purpose: their messages came again.
    pub(crate) forgotten: u64,
}

impl IntakeCount {
    /// Deliveries of orders that had been delivered before.
    pub(crate) fn duplicates(&self) -> u64 {
        self.deliveries - self.orders
    }
}

impl Intake {
    pub(crate) fn new(sales: &Arc<Sales>) -> Self {
        Self { sales: Arc::clone(sales), seen: Mutex::default() }
    }

    pub(crate) fn arrived(&self, order: &Order) {
        let age = self.sales.age(order.id);
        let seen = &mut *lock(&self.seen);
        seen.count.deliveries += 1;
        if !seen.orders.insert(order.id) {
            return;
        }
        seen.count.orders += 1;
        let last = seen.last_numbers.entry(order.customer).or_default();
        if order.number < *last {
            seen.count.out_of_order += 1;
            let Order { id, customer, number, .. } = order;
            self.sales.board.note(format!("order {id}, number {number} of customer {customer}, came after {last}"));
        }
        *last = order.number.max(*last);
        seen.latencies.extend(age.map(|age| (Instant::now(), age)));
    }

    /// The transaction is committed; returns whether to acknowledge.
    pub(crate) fn processed(&self, claim: Claim) -> bool {
        let count = &mut lock(&self.seen).count;
        if claim == Claim::Duplicate {
            count.absorbed += 1;
            return true;
        }
        let forgets = count.orders % LOST_ACKNOWLEDGEMENT == LOST_ACKNOWLEDGEMENT - 1;
        count.forgotten += u64::from(forgets);
        !forgets
    }

    pub(crate) fn failed(&self) {
        lock(&self.seen).count.failed += 1;
    }

    pub(crate) fn count(&self) -> IntakeCount {
        lock(&self.seen).count
    }

    pub(crate) fn orders(&self) -> HashSet<u64> {
        lock(&self.seen).orders.clone()
    }

    /// Half of the latest messages, and 99 % of them, took no longer from commit to consumer.
    pub(crate) fn latency(&self) -> Option<(Duration, Duration)> {
        let mut seen = lock(&self.seen);
        while seen.latencies.front().is_some_and(|(at, _)| at.elapsed() > RECENT) {
            seen.latencies.pop_front();
        }
        let mut recent: Vec<Duration> = seen.latencies.iter().map(|(_, latency)| *latency).collect();
        recent.sort_unstable();
        Some((*recent.get(recent.len() / 2)?, *recent.get(recent.len() * 99 / 100)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(id: u64, number: u64) -> Order {
        Order { id, customer: 1, number, amount_cents: 100 }
    }

    #[test]
    fn a_second_delivery_is_a_duplicate_and_not_out_of_order() {
        let intake = Intake::new(&Arc::default());
        for (id, number) in [(1, 1), (2, 2), (1, 1)] {
            intake.arrived(&order(id, number));
        }
        let count = intake.count();
        assert_eq!((count.orders, count.duplicates(), count.out_of_order), (2, 1, 0));
    }

    #[test]
    fn a_first_delivery_behind_a_later_one_is_out_of_order() {
        let intake = Intake::new(&Arc::default());
        intake.arrived(&order(2, 2));
        intake.arrived(&order(1, 1));
        assert_eq!(intake.count().out_of_order, 1);
    }

    #[test]
    fn an_acknowledgement_is_lost_once_and_not_again_for_the_duplicate() {
        let intake = Intake::new(&Arc::default());
        for id in 1..LOST_ACKNOWLEDGEMENT {
            intake.arrived(&order(id, id));
        }
        assert!(!intake.processed(Claim::First));
        assert!(intake.processed(Claim::Duplicate));
        assert_eq!(intake.count().forgotten, 1);
    }
}
