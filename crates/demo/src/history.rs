//! The sights of the last minute, and the rates between them.

use std::{collections::VecDeque, time::Duration};

use crate::sight::Sight;

/// Sights that are kept: a minute of four a second.
const KEPT: usize = 240;

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

    /// The sights of now and of each of the seconds before, the newest last.
    fn each(&self, seconds: u32) -> impl Iterator<Item = &Sight> {
        let now = self.now().map(|sight| sight.at).unwrap_or_default();
        let ends = (0..=seconds).rev().filter_map(move |back| now.checked_sub(Duration::from_secs(1) * back));
        ends.filter_map(|end| self.0.iter().rev().find(|sight| sight.at <= end))
    }

    /// A count in each of the last seconds.
    pub(crate) fn levels(&self, seconds: u32, count: impl Fn(&Sight) -> u64) -> Vec<u64> {
        self.each(seconds).skip(1).map(count).collect()
    }

    /// How fast a count grew in each of the last seconds; 0 where it is not known.
    pub(crate) fn rates(&self, seconds: u32, count: impl Fn(&Sight) -> Option<u64>) -> Vec<u64> {
        let sights: Vec<&Sight> = self.each(seconds).collect();
        let pairs = sights.iter().zip(sights.iter().skip(1));
        let millis = |sight: &Sight| u64::try_from(sight.at.as_millis()).unwrap_or(u64::MAX);
        let rate = |from: &Sight, to: &Sight| {
            let grown = count(to)?.saturating_sub(count(from)?);
            Some(grown * 1000 / millis(to).saturating_sub(millis(from)).max(1))
        };
        pairs.map(|(from, to)| rate(from, to).unwrap_or_default()).collect()
    }

    /// How fast a count grew in the last second.
    pub(crate) fn rate(&self, count: impl Fn(&Sight) -> Option<u64>) -> u64 {
        self.rates(1, count).last().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::SalesCount;

    #[test]
    fn each_second_has_its_rate() {
        let mut history = History::default();
        assert_eq!(history.rate(|sight| Some(sight.sales.committed)), 0);
        for (half, committed) in (0..).zip([0, 10, 20, 60, 100]) {
            let sales = SalesCount { committed, ..SalesCount::default() };
            history.push(Sight { at: Duration::from_millis(500) * half, sales, ..Sight::default() });
        }
        assert_eq!(history.rates(2, |sight| Some(sight.sales.committed)), [20, 80]);
        assert_eq!(history.rate(|sight| Some(sight.sales.committed)), 80);
    }
}
