//! Chance that can be had again.

use rand::{SeedableRng as _, rngs::StdRng};

/// The variable with a number that makes all chance of a run another one. Without it, and with 0, a seed means what it always does.
pub const VARIABLE: &str = "TEST_SEED";

/// Chance for this seed.
#[must_use]
pub fn random(seed: u64) -> StdRng {
    let run = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    StdRng::seed_from_u64(mixed(seed, run))
}

/// Seeds that differ do so in every run.
fn mixed(seed: u64, run: u64) -> u64 {
    seed ^ run.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::mixed;

    #[test]
    fn another_run_has_other_chances_and_run_0_the_usual_ones() {
        assert_eq!([1, 1000, u64::MAX].map(|seed| mixed(seed, 0)), [1, 1000, u64::MAX]);
        let mut all: Vec<u64> = (0..10).flat_map(|run| (0..5000).map(move |seed| mixed(seed, run))).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 50_000);
    }
}
