//! The written values, and their forms.

use std::net::SocketAddr;

use outbox_relay::settings::value::{ValueKind, count, duration, lanes, retention, size, switch};
use tracing_subscriber::EnvFilter;

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

const SIZES: std::ops::RangeInclusive<usize> = 64 * 1024..=16 << 30;

/// The values of a kind, as people write them.
pub(super) trait WrittenKind: Sized {
    /// Whether this can be the value.
    fn accepts(self, written: &WrittenValue) -> bool;

    /// Returns the wanted form, as text behind "must be".
    fn wanted(self) -> String;

    /// Returns a value of this kind as written in TOML.
    fn toml(self, text: &str) -> String;
}

impl WrittenKind for ValueKind {
    fn accepts(self, written: &WrittenValue) -> bool {
        let text = written.text.as_str();
        takes(self, written.shape)
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

    fn wanted(self) -> String {
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

    fn toml(self, text: &str) -> String {
        match self {
            Self::Count(..) | Self::Switch => text.to_owned(),
            Self::Lanes => format!("[{}]", text.trim_matches(['[', ']'])),
            Self::Retention if text == "0" => text.to_owned(),
            _ => quote(text),
        }
    }
}

fn takes(kind: ValueKind, shape: Shape) -> bool {
    match shape {
        Shape::Word => true,
        Shape::Text => !matches!(kind, ValueKind::Count(..) | ValueKind::Switch | ValueKind::Lanes),
        Shape::Number => matches!(kind, ValueKind::Count(..) | ValueKind::Retention | ValueKind::Property),
        Shape::Switch => matches!(kind, ValueKind::Switch | ValueKind::Property),
        Shape::List => kind == ValueKind::Lanes,
        Shape::Other => false,
    }
}
