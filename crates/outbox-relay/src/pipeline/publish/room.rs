//! How much a sink may have in flight: what it confirms well within a deadline.
//!
//! A broker that throttles, a slow link and a slow queue take little in a second. Messages beyond that are not
//! confirmed at the deadline, and are sent again. So the room begins small, and grows with the load that is confirmed
//! early, if it is used. Kafka's quota leaves ten seconds of its rate free, and then each request waits for all that is
//! in excess, so that the requests of several partitions wait several times as long. So the room grows by a sixteenth
//! of that load, and by a 64th when it is known what the sink takes. A broker that takes 100,000 messages a second in
//! 10 ms each needs 1 MB, which is there after 15 MB.
//!
//! If messages are late, the sink takes in a deadline what it has confirmed meanwhile: the room becomes half of that.
//! But if it confirmed most of that early, it is not slow, and the late messages are stuck: a partition without leader.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::sink::progress::{Confirms, Progress};

/// The bytes that may be in flight at the start.
const FIRST: usize = 64 * 1024;
/// The part of an early confirmed load by which the room grows: below the first room; above it; and above a room of
/// which it is known that the sink takes no more than twice as much in a deadline.
const GROWTH: [u64; 3] = [2, 16, 64];
/// Each message counts as this many bytes and those of its payload.
const EACH: usize = 1024;

/// The room of a sink, in bytes.
#[derive(Debug)]
pub(super) struct Room {
    limit: usize,
    confirms: Arc<Mutex<Confirms>>,
    /// The load that was confirmed early when the room last grew.
    seen: u64,
    /// The last time that the room became smaller. Batches that were handed over before say nothing new.
    shrunk: Option<Instant>,
    /// Whether it is known how much the sink takes in a deadline: it confirmed something when the room was too large.
    is_known: bool,
}

impl Room {
    /// Begins with a small room. A confirm within a quarter of the deadline is early.
    pub(super) fn new(deadline: Duration) -> Self {
        Self { limit: FIRST, confirms: Confirms::new(deadline / 4), seen: 0, shrunk: None, is_known: false }
    }

    /// Returns how many of the messages with these loads have room. One message always has room alone.
    pub(super) fn fits(&mut self, loads: impl Iterator<Item = usize>, now: Instant) -> usize {
        let mut taken = self.grown(now);
        let fits = |load: &usize| {
            let is_alone = taken == 0;
            taken += load;
            is_alone || taken <= self.limit
        };
        loads.take_while(fits).count()
    }

    /// Notes messages that are handed over.
    pub(super) fn take(&self, messages: usize, load: usize, now: Instant) -> Progress {
        Confirms::begin(&self.confirms, messages, load, now)
    }

    /// Notes the end of a batch of which this many messages are confirmed, and whether others were given up at the
    /// deadline.
    pub(super) fn give_back(&mut self, progress: &Progress, confirmed: usize, is_late: bool, now: Instant) {
        let Some(flight) = progress.ended(confirmed, now) else { return };
        let [load, early] = flight.meanwhile(&self.confirms.lock());
        let is_news = self.shrunk.is_none_or(|shrunk| flight.started >= shrunk);
        let is_slow = early * 2 < load || load == 0;
        if is_late && is_news && is_slow {
            self.limit = usize::try_from(load / 2).unwrap_or(usize::MAX);
            (self.shrunk, self.is_known) = (Some(now), load > 0);
        }
    }

    /// Lets the room grow, and returns the load in flight.
    fn grown(&mut self, now: Instant) -> usize {
        let confirms = self.confirms.lock();
        let taken = confirms.in_flight(now);
        let early = confirms.quick();
        let new = early - std::mem::replace(&mut self.seen, early);
        let grow = usize::try_from(new).unwrap_or(usize::MAX);
        if taken.saturating_add(grow).saturating_mul(2) >= self.limit {
            let part = match self.limit {
                limit if limit < FIRST => GROWTH[0],
                _ if !self.is_known => GROWTH[1],
                _ => GROWTH[2],
            };
            self.limit = self.limit.saturating_add(usize::try_from(new / part).unwrap_or(usize::MAX));
        }
        taken
    }
}

/// Returns the load of messages with this number of bytes.
pub(super) fn load(messages: usize, bytes: usize) -> usize {
    messages * EACH + bytes
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, iter::repeat_n};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);
    /// The bytes of a message.
    const BYTES: u32 = 2048;
    const MINUTE: u64 = 60_000;

    struct Handed {
        progress: Progress,
        at: u64,
        messages: usize,
        left: usize,
    }

    /// Drains an endless backlog for a minute. The broker confirms the message with this number, handed over in this
    /// millisecond, in another one. Returns the messages that were confirmed, and those that were given up.
    fn drained(mut confirmed: impl FnMut(u64, u64) -> u64) -> [u64; 2] {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut room = Room::new(DEADLINE);
        let mut confirms = BTreeSet::<(u64, u64, usize)>::new();
        let mut batches = Vec::<Handed>::new();
        let mut number = 0;
        let mut sums = [0, 0];
        for now in (0..MINUTE).step_by(5) {
            while let Some((millis, _, batch)) = confirms.first().copied().filter(|(millis, ..)| *millis <= now) {
                confirms.pop_first();
                let batch = &mut batches[batch];
                if batch.left > 0 && millis <= batch.at + 9300 {
                    batch.progress.confirmed(at(millis));
                    batch.left -= 1;
                    sums[0] += 1;
                    if batch.left == 0 {
                        room.give_back(&batch.progress, batch.messages, false, at(millis));
                    }
                }
            }
            for batch in batches.iter_mut().filter(|batch| batch.left > 0 && now > batch.at + 9300) {
                sums[1] += batch.left as u64;
                room.give_back(&batch.progress, batch.messages - batch.left, true, at(now));
                batch.left = 0;
            }
            let flying: Vec<_> = batches.iter().filter(|batch| batch.left > 0).collect();
            let most = 12_000 - flying.iter().map(|batch| batch.messages).sum::<usize>();
            let each = load(1, usize::try_from(BYTES).unwrap());
            let messages = room.fits(repeat_n(each, most.min(1000)), at(now));
            if messages > 0 && flying.len() < 64 {
                let progress = room.take(messages, messages * each, at(now));
                confirms.extend((number..number + messages as u64).map(|n| (confirmed(n, now), n, batches.len())));
                number += messages as u64;
                batches.push(Handed { progress, at: now, messages, left: messages });
            }
        }
        sums
    }

    /// A broker that takes ten seconds of its rate at once, and then the rate.
    #[test]
    fn what_a_throttled_broker_cannot_confirm_in_time_is_not_handed_over() {
        for rate in [10_000, 100_000, 1_000_000] {
            let mut until = 0;
            let [confirmed, lost] = drained(|_, now| {
                until = until.max(now.saturating_sub(10_000)) + u64::from(BYTES) * 1000 / rate;
                until.saturating_sub(10_000).max(now + 5)
            });
            assert!(lost * 100 <= confirmed, "{lost} of {confirmed} at {rate} bytes a second");
            assert!(confirmed * u64::from(BYTES) >= rate * 50, "{confirmed} at {rate} bytes a second");
        }
    }

    #[test]
    fn a_partition_without_leader_and_a_slow_queue_take_no_room_of_others() {
        for part in [3, 12, 100] {
            let [confirmed, _] = drained(|n, now| if n % part == 0 { u64::MAX } else { now + 5 });
            assert!(confirmed > 3000, "{confirmed} beside one of {part} partitions without leader");
            let [confirmed, lost] = drained(|n, now| now + if n % part == 0 { 6000 } else { 5 });
            assert!(confirmed > 3000 && lost == 0, "{confirmed} beside one of {part} queues that is slow");
        }
    }

    #[test]
    fn a_room_that_was_too_large_is_half_of_what_the_sink_took_meanwhile() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut room = Room { limit: 100_000, ..Room::new(DEADLINE) };
        let [slow, late, last] = [0, 1, 2].map(|second| room.take(10, 40_000, at(second)));
        room.give_back(&slow, 10, false, at(6));
        room.give_back(&late, 5, true, at(10));
        assert_eq!(room.limit, 30_000);
        room.give_back(&last, 0, true, at(11));
        assert_eq!(room.limit, 30_000, "it was handed over before");
    }

    #[test]
    fn messages_have_room_up_to_the_limit_and_one_always_has_room_alone() {
        let now = Instant::now();
        let fits = |taken: usize, loads: &[usize]| {
            let mut room = Room { limit: 100, ..Room::new(DEADLINE) };
            let _flying = room.take(1, taken, now);
            room.fits(loads.iter().copied(), now)
        };
        assert_eq!([fits(0, &[40, 60, 1]), fits(60, &[40, 1]), fits(61, &[40]), fits(0, &[500, 1])], [2, 1, 0, 1]);
    }
}
