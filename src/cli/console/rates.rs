//! Rates, from what consecutive looks have seen.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// The time that a rate is an average of.
const WINDOW: Duration = Duration::from_secs(30);
/// The shortest time between two looks that are kept: every open page looks.
const APART: Duration = Duration::from_secs(1);

/// The looks at an outbox.
#[derive(Debug, Default)]
pub(in crate::cli) struct Rates(Mutex<VecDeque<Look>>);

#[derive(Debug, Clone, Copy)]
struct Look {
    at: Instant,
    newest: u64,
    unsent: u64,
}

impl Rates {
    /// Takes the number of the newest message and the count of the unsent ones. Returns how many messages a second were
    /// enqueued and sent since a look of the last half minute; `None`: there was none. Numbers that a rollback has left
    /// out count as messages.
    pub(super) fn look(&self, newest: u64, unsent: u64) -> Option<(u64, u64)> {
        // An empty table has no newest one; nor has an answer that failed.
        if newest == 0 {
            return None;
        }
        self.look_at(Look { at: Instant::now(), newest, unsent })
    }

    fn look_at(&self, look: Look) -> Option<(u64, u64)> {
        let mut looks = self.0.lock();
        looks.retain(|it| look.at.duration_since(it.at) <= WINDOW);
        let first = looks.front().copied();
        if looks.back().is_none_or(|last| look.at.duration_since(last.at) >= APART) {
            looks.push_back(look);
        }
        let first = first.filter(|first| look.at.duration_since(first.at) >= APART)?;
        let millis = u64::try_from(look.at.duration_since(first.at).as_millis()).ok()?.max(1);
        let enqueued = look.newest.saturating_sub(first.newest);
        let sent = (enqueued + first.unsent).saturating_sub(look.unsent);
        let rate = |count: u64| count.saturating_mul(1000).div_ceil(millis);
        Some((rate(enqueued), rate(sent)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_half_minute() {
        let rates = Rates::default();
        let begin = Instant::now();
        let look =
            |second, newest, unsent| rates.look_at(Look { at: begin + Duration::from_secs(second), newest, unsent });
        assert_eq!(look(0, 1_000, 50), None);
        assert_eq!(look(10, 2_000, 50), Some((100, 100)));
        assert_eq!(look(20, 2_000, 30), Some((50, 51)), "of the whole 20 s");
        assert_eq!(look(45, 2_000, 30), Some((0, 0)), "the first two are forgotten");
        assert_eq!(look(100, 9_000, 30), None);
    }
}
