//! Colours, numbers and little charts for a terminal.

use std::{sync::LazyLock, time::Duration};

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// See <https://no-color.org>.
static COLOURS: LazyLock<bool> = LazyLock::new(|| std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty()));

/// A way to show a text, as terminals number them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ink {
    Bold = 1,
    Dim = 2,
    Red = 31,
    Green = 32,
    Yellow = 33,
}

impl Ink {
    pub(crate) fn on(self, text: &str) -> String {
        if *COLOURS { format!("\x1b[{}m{text}\x1b[0m", self as u8) } else { text.to_owned() }
    }
}

/// The first columns of a line.
pub(crate) fn clip(line: &str, width: usize) -> String {
    let mut text = String::new();
    let mut left = width;
    let mut code = false;
    for c in line.chars() {
        code |= c == '\x1b';
        if code || left > 0 {
            text.push(c);
        }
        left -= usize::from(!code && left > 0);
        code &= c != 'm';
    }
    text
}

/// Without colours.
#[cfg(test)]
pub(crate) fn plain(text: &str) -> String {
    let pieces = text.split('\x1b').map(|piece| match piece.split_once('m') {
        Some((code, rest)) if code.starts_with('[') => rest,
        _ => piece,
    });
    pieces.collect()
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `0.4 ms`, `12 ms`, `3.1 s`.
pub(crate) fn millis(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1000.0;
    match ms {
        ms if ms >= 1000.0 => format!("{:.1} s", ms / 1000.0),
        ms if ms >= 10.0 => format!("{ms:.0} ms"),
        ms => format!("{ms:.1} ms"),
    }
}

/// A bar for each number, the highest one full; none for zero.
pub(crate) fn spark(numbers: &[u64]) -> String {
    let most = numbers.iter().copied().max().unwrap_or_default().max(1);
    let bar = |number: &u64| {
        let level = usize::try_from((number * 7).div_ceil(most)).unwrap_or_default();
        if *number == 0 { ' ' } else { BARS.get(level).copied().unwrap_or('█') }
    };
    numbers.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn times_have_a_unit_that_fits() {
        assert_eq!([412, 12_345, 3_100_000].map(|it| millis(Duration::from_micros(it))), ["0.4 ms", "12 ms", "3.1 s"]);
    }

    #[test]
    fn a_line_is_clipped_and_its_colours_end() {
        assert_eq!(clip("a\x1b[31mbcd\x1b[0me", 2), "a\x1b[31mb\x1b[0m");
        assert_eq!(clip("ab", 3), "ab");
    }

    #[test]
    fn a_chart_goes_from_nothing_to_the_highest() {
        assert_eq!(spark(&[0, 1, 50, 100]), " ▂▅█");
        assert_eq!(spark(&[]), "");
    }
}
