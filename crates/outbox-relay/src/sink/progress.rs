//! The confirms of the messages in flight, one by one. A batch ends with its slowest message. If the sink reports each
//! confirm at once, the publisher can send other messages in its place.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// The progress of a batch, with each of its messages.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    confirms: Arc<Mutex<Confirms>>,
    batch: u64,
}

impl Progress {
    /// Notes that the broker has confirmed one message of the batch.
    #[cfg_attr(
        not(any(feature = "kafka", feature = "rabbitmq")),
        expect(dead_code, reason = "brokers alone confirm one by one")
    )]
    pub(crate) fn confirmed(&self, now: Instant) {
        self.confirms.lock().confirmed(self.batch, 1, now);
    }

    /// Notes the end of the batch, of which this number of messages is confirmed. Returns the batch; `None` if it had
    /// ended.
    pub(crate) fn ended(&self, confirmed: usize, now: Instant) -> Option<Flight> {
        let mut confirms = self.confirms.lock();
        let known = confirms.flights.iter().find(|it| it.batch == self.batch).map_or(0, |it| it.confirmed);
        confirms.confirmed(self.batch, confirmed.saturating_sub(known), now);
        let position = confirms.flights.iter().position(|it| it.batch == self.batch)?;
        Some(confirms.flights.swap_remove(position))
    }
}

/// A batch in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flight {
    batch: u64,
    pub(crate) started: Instant,
    /// The load of each message, and the number of messages.
    each: usize,
    messages: usize,
    confirmed: usize,
    /// The loads that were confirmed before, in all and quickly.
    before: [u64; 2],
}

impl Flight {
    fn left(&self) -> usize {
        self.each * self.messages.saturating_sub(self.confirmed)
    }

    /// Returns the loads that were confirmed since the batch began, in all and quickly.
    pub(crate) fn meanwhile(&self, confirms: &Confirms) -> [u64; 2] {
        [confirms.load - self.before[0], confirms.quick - self.before[1]]
    }
}

/// The confirms of a sink.
#[derive(Debug)]
pub(crate) struct Confirms {
    /// The longest time after which a confirm is quick.
    quickly: Duration,
    flights: Vec<Flight>,
    next: u64,
    /// The loads that were confirmed, in all and quickly.
    load: u64,
    quick: u64,
    /// The start of the newest batch with a quick confirm.
    newest: Option<Instant>,
}

impl Confirms {
    pub(crate) fn new(quickly: Duration) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { quickly, flights: Vec::new(), next: 0, load: 0, quick: 0, newest: None }))
    }

    /// Notes a batch that is handed over.
    pub(crate) fn begin(this: &Arc<Mutex<Self>>, messages: usize, load: usize, now: Instant) -> Progress {
        let mut confirms = this.lock();
        let batch = confirms.next;
        let before = [confirms.load, confirms.quick];
        confirms.next += 1;
        let each = load / messages.max(1);
        confirms.flights.push(Flight { batch, started: now, each, messages, confirmed: 0, before });
        Progress { confirms: Arc::clone(this), batch }
    }

    /// Returns the load that was confirmed quickly, in all.
    pub(crate) fn quick(&self) -> u64 {
        self.quick
    }

    /// Returns the load in flight. Messages are stuck if they wait longer than a later message, or one of their own
    /// batch, that was confirmed quickly: a partition without leader, a slow queue. They take no room. A broker that
    /// throttles confirms in order.
    pub(crate) fn in_flight(&self, now: Instant) -> usize {
        let is_old = |it: &Flight| now.saturating_duration_since(it.started) > self.quickly;
        let is_stuck = |it: &&Flight| is_old(it) && self.newest.is_some_and(|newest| it.started <= newest);
        self.flights.iter().filter(|it| !is_stuck(it)).map(Flight::left).sum()
    }

    fn confirmed(&mut self, batch: u64, messages: usize, now: Instant) {
        let Some(flight) = self.flights.iter_mut().find(|it| it.batch == batch) else { return };
        let messages = messages.min(flight.messages - flight.confirmed);
        flight.confirmed += messages;
        let load = (flight.each * messages) as u64;
        self.load += load;
        if messages > 0 && now.saturating_duration_since(flight.started) <= self.quickly {
            self.quick += load;
            self.newest = self.newest.max(Some(flight.started));
        }
    }
}
