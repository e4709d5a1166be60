//! Literals of attributes that can be checked at compile time.

use syn::{Error, LitStr, Result};

/// Longest delay, in milliseconds: the hundred years of `outbox_core::Message`.
const MAX_DELAY: u64 = 100 * 365 * 86_400_000;

/// A topic that every broker takes: the rules of `outbox_core::Message`.
pub(crate) fn topic(literal: LitStr) -> Result<LitStr> {
    let topic = literal.value();
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if topic.is_empty() || topic == "." || topic == ".." || topic.len() > 249 || !topic.chars().all(legal) {
        let text = "this is no topic: use 1 to 249 letters, digits, `.`, `_` and `-`";
        return Err(Error::new(literal.span(), text));
    }
    Ok(literal)
}

/// A short text: an event type or a media type.
pub(crate) fn short(literal: LitStr) -> Result<LitStr> {
    let text = literal.value();
    if text.is_empty() || text.len() > 255 || text.chars().any(char::is_control) {
        return Err(Error::new(literal.span(), "this has to have 1 to 255 bytes, and no control characters"));
    }
    Ok(literal)
}

/// `"30s"` in milliseconds.
pub(crate) fn delay(literal: &LitStr) -> Result<u64> {
    let text = literal.value();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        _ => None,
    };
    let millis = number.parse::<u64>().ok().zip(unit).map(|(number, unit)| number.saturating_mul(unit));
    let millis = millis.ok_or_else(|| {
        Error::new(literal.span(), "this is no delay: write a whole number and a unit (ms, s, m, h, d), as in \"30s\"")
    })?;
    if millis > MAX_DELAY {
        return Err(Error::new(literal.span(), "this is longer than 100 years: write \"36500d\" at most"));
    }
    Ok(millis)
}
