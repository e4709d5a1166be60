//! The sums of the results that cargo's test runners print.

use std::ops::AddAssign;

/// The number of tests by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    pub(crate) ignored: u32,
}

impl Counts {
    /// The counts of a line like `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; …`; zero for any other
    /// line.
    pub(crate) fn of(line: &str) -> Self {
        let mut counts = Self::default();
        let Some((_, results)) = line.strip_prefix("test result: ").and_then(|line| line.split_once(". ")) else {
            return counts;
        };
        for result in results.split("; ") {
            let (number, word) = result.split_once(' ').unwrap_or_default();
            let number = number.parse().unwrap_or(0);
            match word {
                "passed" => counts.passed = number,
                "failed" => counts.failed = number,
                "ignored" => counts.ignored = number,
                _ => (),
            }
        }
        counts
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn a_result_line_is_counted() {
        let line = "test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.12s";
        assert_eq!(Counts::of(line), Counts { passed: 3, failed: 2, ignored: 1 });
    }

    #[test]
    fn other_lines_count_nothing() {
        for line in ["test a ... ok", "test result: nonsense", "3 passed; 2 failed", ""] {
            assert_eq!(Counts::of(line), Counts::default());
        }
    }
}
