//! Reading texts as durations, sizes, counts and lists.

use std::{net::SocketAddr, time::Duration};

/// Reads `500ms`, `30s`, `5m`, `12h` or `7d`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let seconds =
        |factor: u64| number.checked_mul(factor).map(Duration::from_secs).ok_or_else(|| "is too large".to_owned());
    match unit {
        "" if number == 0 => Ok(Duration::ZERO),
        "ms" => Ok(Duration::from_millis(number)),
        "s" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(3600),
        "d" => seconds(86_400),
        "" => Err(format!("needs a unit: write {number}s or {number}ms (also m, h, d)")),
        unit => Err(format!("has the unknown unit {unit:?}: use ms, s, m, h or d")),
    }
}

/// Reads `512B`, `64KiB`, `4MiB` or `1GiB`.
pub(super) fn size(text: &str) -> Result<usize, String> {
    let (number, unit) = split(text)?;
    let shift = match unit {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "" => return Err(format!("needs a unit: write {number}B, {number}KiB or {number}MiB")),
        unit => return Err(format!("has the unknown unit {unit:?}: use B, KiB, MiB or GiB")),
    };
    let bytes = number.checked_mul(1 << shift).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| "must be more than 0 and fit into memory".to_owned())
}

fn split(text: &str) -> Result<(u64, &str), String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = number.parse().ok().ok_or_else(|| format!("is {text:?}, which is not a whole number with a unit"));
    Ok((number?, unit.trim()))
}

/// Reads a whole number, at least 1.
pub(super) fn count(text: &str) -> Result<usize, String> {
    let number = text.trim().parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("is {text:?}: write a whole number, at least 1"))
}

/// Reads `[0, 1]` or `0,1`.
pub(super) fn lanes(text: &str) -> Result<Vec<u16>, String> {
    let list = text.trim().trim_start_matches('[').trim_end_matches(']');
    let items = list.split(',').map(str::trim).filter(|item| !item.is_empty());
    let lanes: Result<Vec<u16>, _> = items.map(str::parse).collect();
    lanes.ok().ok_or_else(|| format!("is {text:?}: write a list of lanes, each 0 to 65535, such as [0, 1]"))
}

/// Reads `127.0.0.1:9464` or `off`.
pub(super) fn address(text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "off" {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .ok()
        .ok_or_else(|| format!("is {text:?}: write an address and a port, such as 127.0.0.1:9464, or off"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_need_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(604_800)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(duration("30"), Err("needs a unit: write 30s or 30ms (also m, h, d)".into()));
        assert_eq!(duration("3w"), Err("has the unknown unit \"w\": use ms, s, m, h or d".into()));
        assert_eq!(duration("-3s"), Err("is \"-3s\", which is not a whole number with a unit".into()));
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("64"), Err("needs a unit: write 64B, 64KiB or 64MiB".into()));
        assert_eq!(size("0B"), Err("must be more than 0 and fit into memory".into()));
    }

    #[test]
    fn counts_lanes_and_addresses_say_what_they_want() {
        assert_eq!(count("0"), Err("is \"0\": write a whole number, at least 1".into()));
        assert_eq!(lanes("[0, 7]"), Ok(vec![0, 7]));
        assert_eq!(
            lanes("[70000]"),
            Err("is \"[70000]\": write a list of lanes, each 0 to 65535, such as [0, 1]".into())
        );
        assert_eq!(address("off"), Ok(None));
        assert!(address("localhost").is_err());
    }
}
