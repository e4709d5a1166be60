//! A few keys that are much used, and many that are hardly used.

use rand::{Rng, RngExt as _};

/// Draws places from 0 on; place `n` has a weight of `1 / (n + 1)`.
#[derive(Debug, Clone)]
pub(super) struct Zipf(Vec<f64>);

impl Zipf {
    pub(super) fn new(places: u64) -> Self {
        let mut sum = 0.0;
        let mut weight = 0.0;
        let mut add = |_| {
            weight += 1.0;
            sum += 1.0 / weight;
            sum
        };
        Self((0..places.max(1)).map(&mut add).collect())
    }

    pub(super) fn draw(&self, random: &mut impl Rng) -> u64 {
        let sum = self.0.last().copied().unwrap_or(1.0);
        let point = random.random_range(0.0..sum);
        self.0.partition_point(|until| *until <= point) as u64
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng as _, rngs::StdRng};

    use super::Zipf;

    #[test]
    fn the_first_place_is_drawn_twice_as_often_as_the_second() {
        let zipf = Zipf::new(200);
        let mut random = StdRng::seed_from_u64(1);
        let mut counts = [0_u32; 200];
        (0..100_000).for_each(|_| counts[usize::try_from(zipf.draw(&mut random)).unwrap()] += 1);
        let first = f64::from(counts[0]);
        let second = f64::from(counts[1]);
        assert!((1.8..2.2).contains(&(first / second)), "{first} and {second}");
        assert!(counts.iter().all(|count| *count > 0));
    }
}
