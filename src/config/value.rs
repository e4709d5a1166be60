//! The written values, and their meaning.

use std::{net::SocketAddr, time::Duration};

use tracing_subscriber::EnvFilter;

/// The values that a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
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

/// The form in which a value was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// `"text"`
    Text,
    /// `3`
    Number,
    /// `true`
    Switch,
    /// `[1, 2]`
    List,
    /// In a variable or a flag, where all is text.
    Word,
    /// Something that no key takes.
    Other,
}

/// The written value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrittenValue {
    pub(super) text: String,
    pub(super) shape: Shape,
}

impl WrittenValue {
    /// Returns the value as written in TOML.
    pub(super) fn show(&self) -> String {
        match self.shape {
            Shape::Text | Shape::Word => quote(&self.text),
            Shape::List => format!("[{}]", self.text),
            Shape::Number | Shape::Switch | Shape::Other => self.text.clone(),
        }
    }
}

/// Returns a text in quotes.
pub(super) fn quote(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// The longest time: longer than any use needs, and short enough for every computation.
const LONGEST: Duration = Duration::from_secs(36_500 * 86_400);
const SIZES: std::ops::RangeInclusive<usize> = 64 * 1024..=16 << 30;

impl Kind {
    /// Whether this can be the value.
    pub(super) fn accepts(self, written: &WrittenValue) -> bool {
        let text = written.text.as_str();
        self.takes(written.shape)
            && match self {
                Self::Text | Self::Secret | Self::Property => true,
                Self::File => !text.is_empty(),
                Self::Choice(words) => words.contains(&text),
                Self::Switch => switch(text).is_some(),
                Self::Count(min, max) => count(text).is_some_and(|count| (min..=max).contains(&count)),
                Self::Duration => duration(text).is_some_and(|time| !time.is_zero()),
                Self::Retention => retention(text).is_some(),
                Self::Size => size(text).is_some_and(|size| SIZES.contains(&size)),
                Self::Lanes => lanes(text).is_some(),
                Self::Address => text == "off" || text.parse::<SocketAddr>().is_ok(),
                Self::Level => EnvFilter::builder().parse(text).is_ok(),
            }
    }

    fn takes(self, shape: Shape) -> bool {
        match shape {
            Shape::Word => true,
            Shape::Text => !matches!(self, Self::Count(..) | Self::Switch | Self::Lanes),
            Shape::Number => matches!(self, Self::Count(..) | Self::Retention | Self::Property),
            Shape::Switch => matches!(self, Self::Switch | Self::Property),
            Shape::List => self == Self::Lanes,
            Shape::Other => false,
        }
    }

    /// Returns the wanted form, as text behind "must be".
    pub(super) fn wanted(self) -> String {
        match self {
            Self::Text | Self::Secret => "a text in quotes".to_owned(),
            Self::Property => "a text, a number, true or false".to_owned(),
            Self::File => "the path of a file, in quotes".to_owned(),
            Self::Choice(words) => words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" or "),
            Self::Switch => "true or false".to_owned(),
            Self::Count(min, max) => format!("a whole number from {min} to {max}"),
            Self::Duration => r#"a time above zero with its unit, such as "30s", "500ms", "5m" or "7d""#.to_owned(),
            Self::Retention => r#"a time with its unit, such as "7d" or "12h", or 0 for ever"#.to_owned(),
            Self::Size => r#"a size from 64KiB to 16GiB with its unit, such as "64KiB" or "4MiB""#.to_owned(),
            Self::Lanes => "a list of numbers from 0 to 65535, such as [0, 7]".to_owned(),
            Self::Address => r#"an address with its port, such as "127.0.0.1:9464", or "off""#.to_owned(),
            Self::Level => {
                r#"error, warn, info, debug or trace, or a filter such as "info,outbox_relay=debug""#.to_owned()
            }
        }
    }

    /// Returns a value of this kind as written in TOML.
    pub(super) fn toml(self, text: &str) -> String {
        match self {
            Self::Count(..) | Self::Switch => text.to_owned(),
            Self::Lanes => format!("[{}]", text.trim_matches(['[', ']'])),
            Self::Retention if text == "0" => text.to_owned(),
            _ => quote(text),
        }
    }
}

/// Splits `30s` into 30 and `s`.
fn split_unit(text: &str) -> Option<(u64, &str)> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    Some((number.parse().ok()?, unit))
}

pub(crate) fn duration(text: &str) -> Option<Duration> {
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

pub(super) fn retention(text: &str) -> Option<Duration> {
    if text == "0" { Some(Duration::ZERO) } else { duration(text) }
}

pub(super) fn size(text: &str) -> Option<usize> {
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

pub(super) fn count(text: &str) -> Option<usize> {
    text.parse().ok()
}

pub(super) fn switch(text: &str) -> Option<bool> {
    text.parse().ok()
}

pub(super) fn lanes(text: &str) -> Option<Vec<u16>> {
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
