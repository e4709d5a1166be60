//! Arrivals, sorted into first deliveries, replays and duplicates.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use outbox_core::REPLAY_HEADER;
use uuid::Uuid;

use crate::consume::Arrival;

/// Deliveries of messages, each with its place among all arrivals.
pub(super) type Places<'a> = HashMap<Uuid, (usize, &'a Arrival)>;

/// The arrivals.
pub(super) struct Arrivals<'a> {
    /// The first delivery of each message, and its place among all arrivals.
    pub(super) first: Places<'a>,
    /// The same for each job that sent messages again: its first delivery of each.
    pub(super) replays: BTreeMap<&'a str, Places<'a>>,
    /// Every further delivery that the relay made.
    pub(super) duplicates: Vec<Uuid>,
    /// Further deliveries that, as the broker says, it made itself.
    pub(super) redelivered: usize,
}

impl<'a> Arrivals<'a> {
    pub(super) fn new(arrivals: &'a [Arrival]) -> Self {
        let first = HashMap::new();
        let replays = BTreeMap::new();
        let mut sorted = Self { first, replays, duplicates: Vec::new(), redelivered: 0 };
        for (place, arrival) in arrivals.iter().enumerate() {
            let job = arrival.headers.iter().find(|(name, _)| name == REPLAY_HEADER).map(|(_, job)| job.as_str());
            let places = job.map_or(&mut sorted.first, |job| sorted.replays.entry(job).or_default());
            match places.entry(arrival.id) {
                Entry::Vacant(entry) => drop(entry.insert((place, arrival))),
                Entry::Occupied(_) if arrival.redelivered => sorted.redelivered += 1,
                Entry::Occupied(_) => sorted.duplicates.push(arrival.id),
            }
        }
        sorted
    }
    /// The deliveries of a message by replays.
    pub(super) fn again(&self, id: &Uuid) -> impl Iterator<Item = &'a Arrival> {
        self.replays.values().filter_map(|places| places.get(id)).map(|(_, arrival)| *arrival)
    }
}
