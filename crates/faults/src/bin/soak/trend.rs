//! Whether a series grows.

use serde::Serialize;

/// A rise up to the first share of the level, or up to the second share of its bound, is noise.
pub(crate) const NOISE: f64 = 0.05;
pub(crate) const SMALL: f64 = 0.125;
/// A rise by more than this share of the level, and by more than its bound, is too much.
pub(crate) const TOO_MUCH: f64 = 0.2;

/// The course of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Course {
    /// It does not rise, or only by noise.
    Flat,
    /// It rises.
    Growing,
    /// It rises by too much.
    Beyond,
}

impl Course {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Growing => "growing",
            Self::Beyond => "BEYOND ITS BOUND",
        }
    }
}

/// The trend of a series.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Trend {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
    pub(crate) last: f64,
    /// The slope of the line through the last three quarters.
    pub(crate) per_hour: f64,
    /// The rise from the first point of that line to its last.
    pub(crate) rise: f64,
    pub(crate) course: Course,
}

impl Trend {
    /// The trend of points (hours, value). `None` if there are too few.
    pub(crate) fn of(points: &[(f64, f64)], bound: f64) -> Option<Self> {
        let later = points.get(points.len() / 4..)?;
        let mut sorted: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
        sorted.sort_by(f64::total_cmp);
        let median = *sorted.get(sorted.len() / 2)?;
        let per_hour = slope(later)?;
        let rise = per_hour * (later.last()?.0 - later.first()?.0);
        Some(Self {
            min: *sorted.first()?,
            median,
            max: *sorted.last()?,
            last: points.last()?.1,
            per_hour,
            rise,
            course: course(rise, median, bound),
        })
    }
}

fn course(rise: f64, level: f64, bound: f64) -> Course {
    if rise > bound && rise > TOO_MUCH * level {
        Course::Beyond
    } else if rise > bound * SMALL && rise > NOISE * level {
        Course::Growing
    } else {
        Course::Flat
    }
}

/// The slope of the least-squares line; `None` if all points have the same time.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let number = count(points.len());
    let at = points.iter().map(|(at, _)| at).sum::<f64>() / number;
    let level = points.iter().map(|(_, value)| value).sum::<f64>() / number;
    let spread: f64 = points.iter().map(|(it, _)| (it - at).powi(2)).sum();
    let product: f64 = points.iter().map(|(it, value)| (it - at) * (value - level)).sum();
    (spread > 0.0).then(|| product / spread)
}

/// A picture of at most this number of characters: the mean of each part of the time, scaled from zero to the highest.
pub(crate) fn picture(points: &[(f64, f64)], width: usize) -> String {
    const BLOCKS: [(f64, char); 8] = [
        (0.875, '█'),
        (0.75, '▇'),
        (0.625, '▆'),
        (0.5, '▅'),
        (0.375, '▄'),
        (0.25, '▃'),
        (0.125, '▂'),
        (f64::NEG_INFINITY, '▁'),
    ];
    let parts = points.chunks(points.len().div_ceil(width.max(1)).max(1));
    let mean = |part: &[(f64, f64)]| part.iter().map(|(_, value)| value).sum::<f64>() / count(part.len());
    let means: Vec<f64> = parts.map(mean).collect();
    let highest = means.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let block = |mean: &f64| BLOCKS.iter().find(|(from, _)| mean / highest >= *from).map(|(_, block)| *block);
    means.iter().filter_map(block).collect()
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::{Course, Trend, picture};

    const BOUND: f64 = 16.0;

    /// An hour with a point a minute.
    fn hour(value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (0..=60_u32).map(|minute| f64::from(minute) / 60.0).map(|at| (at, value(at))).collect()
    }

    #[test]
    fn what_settles_in_the_first_quarter_is_flat() {
        let trend = Trend::of(&hour(|at| if at < 0.25 { 100.0 * at } else { 30.0 }), BOUND).unwrap();
        assert_eq!((trend.course, trend.min, trend.median, trend.max), (Course::Flat, 0.0, 30.0, 30.0));
    }

    #[test]
    fn the_slope_is_that_of_the_last_three_quarters() {
        let trend = Trend::of(&hour(|at| 40.0 + 4.0 * at), BOUND).unwrap();
        assert!((trend.per_hour - 4.0).abs() < 1e-9 && (trend.rise - 3.0).abs() < 1e-9, "{trend:?}");
        assert_eq!(trend.course, Course::Growing);
    }

    #[test]
    fn a_rise_must_be_beyond_the_bound_and_large_beside_the_level() {
        let course =
            |level: f64, rise: f64| Trend::of(&hour(|at| level + rise * at / 0.75), BOUND).map(|trend| trend.course);
        assert_eq!(course(40.0, 17.0), Some(Course::Beyond));
        assert_eq!(course(40.0, 15.0), Some(Course::Growing));
        assert_eq!(course(200.0, 17.0), Some(Course::Growing));
        assert_eq!(course(1000.0, 17.0), Some(Course::Flat));
        assert_eq!(course(0.0, 1.0), Some(Course::Flat));
        assert_eq!(course(40.0, -30.0), Some(Course::Flat));
    }

    #[test]
    fn too_few_points_have_no_trend() {
        assert!(Trend::of(&[], BOUND).is_none());
        assert!(Trend::of(&[(0.0, 5.0)], BOUND).is_none());
    }

    #[test]
    fn a_picture_begins_at_zero() {
        let points: Vec<(f64, f64)> = (0..8_u32).map(|i| (f64::from(i), f64::from(i))).collect();
        assert_eq!(picture(&points, 8), "▁▂▃▄▅▆▇█");
        assert_eq!(picture(&hour(|_| 7.0), 4), "████");
        assert_eq!(picture(&hour(|_| 0.0), 4), "▁▁▁▁");
        assert_eq!(picture(&[], 4), "");
    }
}
