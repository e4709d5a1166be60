//! Times as texts.

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Formats microseconds since 1970: `2018-04-05T17:31:00Z`, with a fraction if there is one. `None` outside of the
/// years 0 to 9999.
#[must_use]
pub(crate) fn rfc3339(micros: i64) -> Option<String> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000).ok()?.format(&Rfc3339).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339_says() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00Z"),
            (4_107_542_399_000_001, "2100-02-28T23:59:59.000001Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00Z"),
            (1_522_949_460_000_000, "2018-04-05T17:31:00Z"),
        ] {
            assert_eq!(rfc3339(micros).as_deref(), Some(text));
        }
        assert_eq!(rfc3339(i64::MAX), None);
    }
}
