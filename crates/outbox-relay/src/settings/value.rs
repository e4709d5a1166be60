//! The kinds of values, and their meaning.

use std::time::Duration;

/// The values that a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A text.
    Text,
    /// A text that is never printed.
    Secret,
    /// The path of a file with a secret.
    File,
    /// The value of a property of librdkafka: a text, a number or a switch.
    Property,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// True or false.
    Switch,
    /// A whole number between two bounds.
    Count(usize, usize),
    /// A time with its unit.
    Duration,
    /// A time with its unit, or 0.
    Retention,
    /// A number of bytes with its unit.
    Size,
    /// Numbers of lanes.
    Lanes,
    /// An address to listen on, or `off`.
    Address,
    /// A filter for logs.
    Level,
}

/// The longest time: longer than any use needs, and short enough for every computation.
const LONGEST: Duration = Duration::from_secs(36_500 * 86_400);
/// Splits `30s` into 30 and `s`.
fn split_unit(text: &str) -> Option<(u64, &str)> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    Some((number.parse().ok()?, unit))
}

pub fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text)?;
    let unit = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(unit).map(Duration::from_millis).filter(|time| *time <= LONGEST)
}

#[must_use]
pub fn retention(text: &str) -> Option<Duration> {
    if text == "0" { Some(Duration::ZERO) } else { duration(text) }
}

#[must_use]
pub fn size(text: &str) -> Option<usize> {
    let (number, unit) = split_unit(text)?;
    let unit = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    usize::try_from(number).ok()?.checked_mul(unit)
}

#[must_use]
pub fn count(text: &str) -> Option<usize> {
    text.parse().ok()
}

#[must_use]
pub fn switch(text: &str) -> Option<bool> {
    text.parse().ok()
}

#[must_use]
pub fn lanes(text: &str) -> Option<Vec<u16>> {
    let text = text.trim_matches(['[', ']']);
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.split(',').map(|lane| lane.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_whole_numbers_with_a_unit() {
        for (text, millis) in [("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("7d", 604_800_000)]
        {
            assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for (text, bytes) in [("7B", 7), ("64KiB", 65_536), ("1MiB", 1_048_576), ("2GiB", 2_147_483_648)] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "0", "30", "s", "1.5s", "-1s", "30 s", "30sec", "99999999999d", "18446744073709551616s"] {
            assert_eq!(duration(text), None, "{text}");
        }
        for text in ["", "0", "1024", "1MB", "1mib", "-1KiB", "99999999999GiB"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn what_needs_no_unit_takes_none() {
        assert_eq!(retention("0"), Some(Duration::ZERO));
        assert_eq!(lanes("0, 7"), Some(vec![0, 7]));
        assert_eq!(lanes("0,65536"), None);
    }
}
