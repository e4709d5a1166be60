//! The sights of the last minute, and the rates between them.

use std::{collections::VecDeque, time::Duration};

use crate::sight::Sight;

/// Sights that are kept: a minute of four a second.
const KEPT: usize = 240;
/// Over how long a rate is taken.
const SPAN: Duration = Duration::from_secs(1);

/// The sights of the last minute, the newest last.
#[derive(Debug, Default)]
pub(crate) struct History(VecDeque<Sight>);

impl History {
    /// Adds the newest.
    pub(crate) fn push(&mut self, sight: Sight) {
        self.0.push_back(sight);
        if self.0.len() > KEPT {
            self.0.pop_front();
        }
    }

    /// The newest.
    pub(crate) fn now(&self) -> Option<&Sight> {
        self.0.back()
    }

    /// How fast a count grew in the last second.
    pub(crate) fn rate(&self, count: impl Fn(&Sight) -> Option<u64>) -> Option<u64> {
        self.rate_before(self.0.back()?.at, count)
    }

    /// How fast a count grew in each of the last seconds, the latest last.
    pub(crate) fn rates(&self, seconds: u32, count: impl Fn(&Sight) -> Option<u64>) -> Vec<u64> {
        let Some(now) = self.0.back().map(|sight| sight.at) else { return Vec::new() };
        let ends = (0..seconds).rev().filter_map(|back| now.checked_sub(SPAN * back));
        ends.map(|end| self.rate_before(end, &count).unwrap_or_default()).collect()
    }

    fn rate_before(&self, end: Duration, count: impl Fn(&Sight) -> Option<u64>) -> Option<u64> {
        let until = self.0.iter().rev().find(|sight| sight.at <= end)?;
        let start = until.at.checked_sub(SPAN).unwrap_or_default();
        let from = self.0.iter().rev().find(|sight| sight.at <= start).or_else(|| self.0.front())?;
        let millis = u64::try_from(until.at.saturating_sub(from.at).as_millis()).ok().filter(|millis| *millis > 0)?;
        let grown = count(until)?.saturating_sub(count(from)?);
        Some(grown * 1000 / millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::SalesCount;

    fn history(counts: &[u64]) -> History {
        let mut history = History::default();
        for (half, committed) in (0..).zip(counts) {
            let sales = SalesCount { committed: *committed, ..SalesCount::default() };
            history.push(Sight { at: Duration::from_millis(500) * half, sales, ..Sight::default() });
        }
        history
    }

    fn rate(history: &History) -> Option<u64> {
        history.rate(|sight| Some(sight.sales.committed))
    }

    #[test]
    fn the_rate_is_that_of_the_last_second() {
        assert_eq!(rate(&history(&[0, 500, 550, 600])), Some(100));
    }

    #[test]
    fn one_sight_has_no_rate() {
        assert_eq!(rate(&history(&[7])), None);
        assert_eq!(rate(&history(&[])), None);
    }

    #[test]
    fn each_second_has_its_rate() {
        assert_eq!(history(&[0, 10, 20, 60, 100]).rates(2, |sight| Some(sight.sales.committed)), [20, 80]);
    }
}
