use std::time::Duration;

use crate::Failure;

/// The number of attempts of a message, and the waits between them. Each wait is random, from half of its bound up to
/// the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retry {
    /// Upper bound of the first wait; each further bound is twice the last.
    pub base: Duration,
    /// Upper bound of every wait.
    pub max: Duration,
    /// After this number of attempts a message is dead.
    pub max_attempts: u32,
}

impl Default for Retry {
    /// 30 attempts, with bounds of 100 ms up to a minute: at least 10 minutes from the first to the last, at most 21.
    /// So an outage of ten minutes, of a service that the handler calls, makes no message dead.
    fn default() -> Self {
        Self { base: Duration::from_millis(100), max: Duration::from_secs(60), max_attempts: 30 }
    }
}

/// The consequence of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextTry {
    /// Retried; `counted` if it has cost an attempt.
    Again { counted: bool },
    /// Retried after this time, for no attempt.
    After(Duration),
    /// Given up, for this reason.
    Dead(&'static str),
    /// Back to the broker.
    Requeue,
}

impl Retry {
    /// These bounds of the first wait and of all, and this number of attempts, after which a message is dead.
    #[must_use]
    pub const fn new(base: Duration, max: Duration, max_attempts: u32) -> Self {
        Self { base, max, max_attempts }
    }

    /// The consequence of the failure of attempt number `attempt`.
    pub(crate) fn next(&self, failure: &Failure, attempt: u32, can_requeue: bool) -> NextTry {
        match failure {
            _ if failure.is_passing() => NextTry::Again { counted: false },
            Failure::Dead(_) => NextTry::Dead("refused"),
            Failure::After(wait) => NextTry::After((*wait).min(Failure::LONGEST_IN_MEMORY)),
            Failure::Requeue(_) if can_requeue => NextTry::Requeue,
            Failure::Requeue(_) => NextTry::Again { counted: false },
            Failure::Retry(_) if attempt >= self.max_attempts => NextTry::Dead("attempts"),
            Failure::Retry(_) => NextTry::Again { counted: true },
        }
    }

    /// The upper bound of the wait after this number of failures.
    fn bound(&self, failures: u32) -> Duration {
        self.base.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1).min(31))).min(self.max)
    }

    /// A random wait after this number of failures.
    pub(crate) fn wait(&self, failures: u32) -> Duration {
        self.bound(failures).mul_f64(f64::midpoint(1.0, rand::random()))
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::sqlx;

    use super::*;

    #[test]
    fn the_failure_and_the_attempts_decide() {
        let retry = Retry { max_attempts: 3, ..Retry::default() };
        let cases = [
            (Failure::from("x"), 1, NextTry::Again { counted: true }),
            (Failure::from("x"), 2, NextTry::Again { counted: true }),
            (Failure::from("x"), 3, NextTry::Dead("attempts")),
            (Failure::dead("x"), 1, NextTry::Dead("refused")),
            (Failure::requeue("x"), 9, NextTry::Requeue),
            (Failure::from(sqlx::Error::PoolTimedOut), 99, NextTry::Again { counted: false }),
            (Failure::from(sqlx::Error::RowNotFound), 3, NextTry::Dead("attempts")),
            (Failure::dead(sqlx::Error::PoolTimedOut), 1, NextTry::Dead("refused")),
            (Failure::After(Duration::from_secs(5)), 99, NextTry::After(Duration::from_secs(5))),
            (Failure::After(Duration::MAX), 99, NextTry::After(Failure::LONGEST_IN_MEMORY)),
        ];
        for (failure, attempt, next) in cases {
            assert_eq!(retry.next(&failure, attempt, true), next, "{failure:?} at attempt {attempt}");
        }
        assert_eq!(retry.next(&Failure::requeue("x"), 9, false), NextTry::Again { counted: false });
    }

    #[test]
    fn waits_double_up_to_the_limit() {
        let retry = Retry { base: Duration::from_secs(1), max: Duration::from_secs(5), max_attempts: 1 };
        let bounds = [1, 2, 3, 4, 5, 99, u32::MAX].map(|failures| retry.bound(failures).as_secs());
        assert_eq!(bounds, [1, 2, 4, 5, 5, 5, 5]);
        let waits = Duration::from_secs(1)..=Duration::from_secs(2);
        assert!((0..100).all(|_| waits.contains(&retry.wait(2))));
    }

    #[test]
    fn the_default_outlasts_an_outage_of_ten_minutes() {
        let retry = Retry::default();
        let longest: Duration = (1..retry.max_attempts).map(|failures| retry.bound(failures)).sum();
        assert!(longest / 2 >= Duration::from_secs(600) && longest <= Duration::from_secs(21 * 60), "{longest:?}");
    }
}
