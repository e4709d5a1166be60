//! Texts from outside, made safe for a terminal and a log.

use std::fmt::Write as _;

/// Escapes control characters, line separators, and the marks that change the direction of a text. So an error text of
/// a broker forges no line, and hides nothing.
#[must_use]
pub fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) {
            // Writing to a string does not fail.
            write!(shown, "\\u{{{:x}}}", u32::from(c)).ok();
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Whether it is a control character, a line separator, or a mark of direction or of no width (Unicode TR 9 and TR 36).
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Escapes each line of a text of several.
pub fn lines(text: &str) -> String {
    text.lines().map(shown).collect::<Vec<_>>().join("\n")
}

/// Formats a duration in microseconds with its two largest units: `3 h 20 min`, `4 s`.
#[must_use]
pub fn span(micros: i64) -> String {
    let seconds = micros.unsigned_abs() / 1_000_000;
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let first = units.iter().position(|(length, _)| seconds >= *length).unwrap_or(units.len() - 1);
    let mut rest = seconds;
    let parts = units.iter().skip(first).take(2).map(|(length, unit)| {
        let count = rest / length;
        rest %= length;
        (count, unit)
    });
    let parts: Vec<_> = parts.collect();
    let shown = parts.iter().enumerate().filter(|(n, (count, _))| *n == 0 || *count > 0);
    shown.map(|(_, (count, unit))| format!("{count} {unit}")).collect::<Vec<_>>().join(" ")
}

/// A number with its noun: `1 message`, `3 messages`.
pub fn counted(count: impl TryInto<u64>, one: &str, more: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {}", if count == 1 { one } else { more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_from_outside_forges_no_line_and_hides_nothing() {
        assert_eq!(shown("größe: 3 €"), "größe: 3 €");
        assert_eq!(shown("a\n2026 ERROR\u{1b}[2J\r"), "a\\u{a}2026 ERROR\\u{1b}[2J\\u{d}");
        assert_eq!(shown("a\u{202e}b\u{2066}\u{200b}\u{2028}"), "a\\u{202e}b\\u{2066}\\u{200b}\\u{2028}");
    }

    #[test]
    fn a_span_has_its_two_largest_units() {
        let spans = [0, 999_999, 4_000_000, 61_000_000, 3_600_000_000, 12_000_000_000, 90_061_000_000];
        assert_eq!(spans.map(span), ["0 s", "0 s", "4 s", "1 min 1 s", "1 h", "3 h 20 min", "1 d 1 h"]);
    }
}
