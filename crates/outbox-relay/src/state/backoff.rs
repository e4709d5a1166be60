//! The waits between tries to reach something that is down.
//!
//! Only this module uses the crate `backoff`. It is unmaintained (RUSTSEC-2025-0012), so nothing of it shows outside.

use std::time::Duration;

use ::backoff::{ExponentialBackoff, ExponentialBackoffBuilder, backoff::Backoff as _};

/// Waits that double up to a limit, each between half and one and a half times its nominal length.
pub(crate) struct Backoff {
    waits: ExponentialBackoff,
    max: Duration,
}

impl Backoff {
    /// Takes the first wait and the longest.
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        let waits = ExponentialBackoffBuilder::new()
            .with_initial_interval(first)
            .with_max_interval(max)
            .with_multiplier(2.0)
            .with_max_elapsed_time(None)
            .build();
        Self { waits, max }
    }

    /// Returns the next wait.
    pub(crate) fn next(&mut self) -> Duration {
        self.waits.next_backoff().unwrap_or(self.max).min(self.max)
    }

    /// Makes the next wait the first again, after a success.
    pub(crate) fn reset(&mut self) {
        self.waits.reset();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Backoff;

    #[test]
    fn waits_grow_up_to_the_limit_and_start_again_after_a_success() {
        let first = Duration::from_millis(100);
        let max = Duration::from_secs(5);
        let mut backoff = Backoff::new(first, max);
        assert!(backoff.next() <= first * 3 / 2);
        let waits: Vec<_> = (0..50).map(|_| backoff.next()).collect();
        assert!(waits.iter().all(|wait| *wait <= max));
        assert!(waits.iter().rev().take(10).all(|wait| *wait >= max / 2));
        backoff.reset();
        assert!(backoff.next() <= first * 3 / 2);
    }
}
