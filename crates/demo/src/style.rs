//! Colours, numbers and little charts for a terminal.

use std::time::Duration;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

fn coloured(code: u8, text: &str) -> String {
    format!("\x1b[{code}m{text}\x1b[0m")
}

pub(crate) fn bold(text: &str) -> String {
    coloured(1, text)
}

pub(crate) fn dim(text: &str) -> String {
    coloured(2, text)
}

pub(crate) fn red(text: &str) -> String {
    coloured(31, text)
}

pub(crate) fn green(text: &str) -> String {
    coloured(32, text)
}

pub(crate) fn yellow(text: &str) -> String {
    coloured(33, text)
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
    fn a_chart_goes_from_nothing_to_the_highest() {
        assert_eq!(spark(&[0, 1, 50, 100]), " ▂▅█");
        assert_eq!(spark(&[]), "");
    }
}
