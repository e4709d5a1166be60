//! Reproducible randomness.

use rand::{SeedableRng as _, rngs::StdRng};

/// The variable whose number changes all randomness of a run. Without it, and with 0, a seed always means the same.
pub const VARIABLE: &str = "TEST_SEED";

/// The randomness of this seed.
#[must_use]
pub fn random(seed: u64) -> StdRng {
    let run = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    StdRng::seed_from_u64(mixed(seed, run))
}

/// Different seeds stay different in every run.
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
