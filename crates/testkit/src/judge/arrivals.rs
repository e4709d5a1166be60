//! Arrivals, sorted into first deliveries and duplicates.

use std::collections::{HashMap, hash_map::Entry};

use uuid::Uuid;

use crate::consume::Arrival;

/// The arrivals.
pub(super) struct Arrivals<'a> {
    /// The first delivery of each message, and its place among all arrivals.
    pub(super) first: HashMap<Uuid, (usize, &'a Arrival)>,
    /// Every further delivery that the relay made.
    pub(super) duplicates: Vec<Uuid>,
    /// Further deliveries that, as the broker says, it made itself.
    pub(super) redelivered: usize,
}

impl<'a> Arrivals<'a> {
    pub(super) fn new(arrivals: &'a [Arrival]) -> Self {
        let mut sorted = Self { first: HashMap::new(), duplicates: Vec::new(), redelivered: 0 };
        for (place, arrival) in arrivals.iter().enumerate() {
            match sorted.first.entry(arrival.id) {
                Entry::Vacant(entry) => drop(entry.insert((place, arrival))),
                Entry::Occupied(_) if arrival.redelivered => sorted.redelivered += 1,
                Entry::Occupied(_) => sorted.duplicates.push(arrival.id),
            }
        }
        sorted
    }
}
