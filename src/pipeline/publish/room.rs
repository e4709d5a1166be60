//! How much a sink may have in flight: what it confirms well within a deadline.
//!
//! A broker that throttles, a slow link and a slow queue take little in a second. Messages beyond that are not confirmed
//! at the deadline, and are sent again. So the room begins small, and grows only while it is used and all confirms come
//! early. Kafka's quota leaves ten seconds of its rate free: quick confirms do not show that a broker takes more. Then
//! each request waits for all that is in excess, so that the requests of several partitions wait several times as long.
//! Thus the room grows by a sixteenth at a time, and more slowly above the room that was last too large. A room below the
//! first one doubles. A broker that takes 100,000 messages a second in 10 ms each needs 1 MB, which is there after 15 MB.

use std::time::{Duration, Instant};

/// The bytes that may be in flight at the start.
const FIRST: usize = 64 * 1024;
/// The part of a confirmed load by which the room grows, and the part above the last room that was too large.
const GROWTH: (usize, usize) = (16, 64);
/// Each message counts as this many bytes and those of its payload.
const EACH: usize = 1024;

/// The room of a sink, in bytes.
#[derive(Debug)]
pub(super) struct Room {
    limit: usize,
    taken: usize,
    /// The room after it became smaller.
    known: usize,
    /// The last time that the room became smaller. Batches that were handed over before say nothing new.
    shrunk: Instant,
}

/// A batch that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) started: Instant,
    pub(super) took: Duration,
    pub(super) load: usize,
    /// The load that the sink confirmed, or refused for the time being.
    pub(super) answered: usize,
    /// Whether the sink gave up some of its messages, and whether it did so at the deadline.
    pub(super) is_given_up: bool,
    pub(super) is_late: bool,
}

impl Room {
    pub(super) fn new(now: Instant) -> Self {
        Self { limit: FIRST, taken: 0, known: usize::MAX, shrunk: now }
    }

    /// Returns how many of the messages with these loads have room. One message always has room alone.
    pub(super) fn fits(&self, loads: impl Iterator<Item = usize>) -> usize {
        let mut taken = self.taken;
        let fits = |load: &usize| {
            let is_alone = taken == 0;
            taken += load;
            is_alone || taken <= self.limit
        };
        loads.take_while(fits).count()
    }

    pub(super) fn take(&mut self, load: usize) {
        self.taken += load;
    }

    /// Notes the end of a batch, and what it shows.
    pub(super) fn give_back(&mut self, batch: Ended, deadline: Duration) {
        let is_used = self.taken * 2 >= self.limit;
        self.taken = self.taken.saturating_sub(batch.load);
        let is_news = batch.started >= self.shrunk;
        if batch.is_given_up && (batch.is_late || !is_news) {
            // Batches in flight are given up together. The sink takes in a deadline what it has confirmed of all.
            let others = if is_news { 0 } else { self.limit };
            self.limit = others + batch.answered / 2;
        } else if !batch.is_given_up && batch.took > deadline / 2 && is_news {
            self.limit /= 2;
        } else {
            if !batch.is_given_up && batch.took < deadline / 4 && is_used {
                self.limit += batch.answered / self.part();
            }
            return;
        }
        self.known = self.limit;
        self.shrunk = self.shrunk.max(batch.started + batch.took);
    }

    /// Returns the part of a confirmed load by which the room grows.
    fn part(&self) -> usize {
        match self.limit {
            limit if limit < FIRST => 1,
            limit if limit < self.known => GROWTH.0,
            _ => GROWTH.1,
        }
    }
}

/// Returns the load of messages with this number of bytes.
pub(super) fn load(messages: usize, bytes: usize) -> usize {
    messages * EACH + bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);

    fn ended(start: Instant, [started, ended]: [u64; 2], load: usize, answered: usize) -> Ended {
        let started = start + Duration::from_millis(started);
        let took = start + Duration::from_millis(ended) - started;
        let is_late = took > DEADLINE / 2;
        Ended { started, took, load, answered, is_given_up: answered < load, is_late }
    }

    #[test]
    fn the_room_follows_what_was_confirmed_well_within_the_deadline() {
        // The limit and the load taken before; the batches that end, as their times in ms, loads and confirmed loads; the
        // limit after.
        type Case = (usize, usize, &'static [([u64; 2], usize, usize)], usize);
        let start = Instant::now();
        let cases: [Case; 11] = [
            (1000, 1000, &[([0, 10], 1000, 500)], 1000),
            (80_000, 80_000, &[([0, 10], 80_000, 80_000)], 85_000),
            (160_000, 80_000, &[([0, 6000], 40_000, 40_000), ([6010, 6020], 64_000, 64_000)], 81_000),
            (1000, 1000, &[([0, 10], 1000, 1000)], 2000),
            (1000, 400, &[([0, 10], 400, 400)], 1000),
            (1000, 1000, &[([0, 3000], 1000, 1000)], 1000),
            (1000, 1000, &[([0, 6000], 1000, 1000)], 500),
            (1000, 1000, &[([0, 6000], 500, 500), ([10, 6010], 500, 500)], 500),
            (9000, 9000, &[([0, 9500], 3000, 800), ([1, 9500], 3000, 40), ([9000, 9501], 3000, 0)], 420),
            (9000, 9000, &[([0, 9500], 3000, 0), ([9600, 9700], 100, 100)], 100),
            (9000, 9000, &[([0, 9500], 3000, 0), ([9600, 19_100], 100, 0)], 0),
        ];
        for (limit, taken, batches, expected) in cases {
            let mut room = Room { limit, taken, ..Room::new(start) };
            for (times, load, answered) in batches {
                room.give_back(ended(start, *times, *load, *answered), DEADLINE);
            }
            assert_eq!(room.limit, expected, "{limit} {taken} {batches:?}");
        }
    }

    #[test]
    fn messages_have_room_up_to_the_limit_and_one_always_has_room_alone() {
        let fits = |taken, loads: &[usize]| {
            Room { limit: 100, taken, ..Room::new(Instant::now()) }.fits(loads.iter().copied())
        };
        assert_eq!([fits(0, &[40, 60, 1]), fits(60, &[40, 1]), fits(61, &[40]), fits(0, &[500, 1])], [2, 1, 0, 1]);
    }

    /// A broker that takes ten seconds of its rate at once, and then the rate.
    #[test]
    fn what_a_throttled_broker_cannot_confirm_in_time_is_not_handed_over() {
        for rate in [10_000, 100_000, 1_000_000, 100_000_000] {
            let (mut now, mut free, mut sent, mut rounds) = (Instant::now(), 10 * rate, 0, 0);
            let mut room = Room::new(now);
            while sent < 40 * rate {
                let load = room.limit;
                room.take(load);
                let millis = 10 + load.saturating_sub(free) * 1000 / rate;
                let took = Duration::from_millis(millis.try_into().unwrap());
                assert!(took < DEADLINE * 9 / 10, "{took:?} at {rate} bytes a second");
                let ended = Ended { started: now, took, load, answered: load, is_given_up: false, is_late: false };
                room.give_back(ended, DEADLINE);
                free = free.saturating_sub(load) + rate / 100;
                (now, sent, rounds) = (now + took, sent + load, rounds + 1);
            }
            assert!(rounds < 200, "{rounds} rounds at {rate} bytes a second");
        }
    }
}
