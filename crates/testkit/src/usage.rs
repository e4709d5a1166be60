//! The resource use of a process, as reported by Linux.

use std::fs;

use anyhow::{Context as _, Result};

/// Clock ticks of a second in /proc, on every current Linux.
pub const TICKS: f64 = 100.0;

/// Processor time of a process so far in seconds, user and system time together.
///
/// # Errors
/// When there is no such process, or no `/proc`.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("cannot read a process's times in /proc")?;
    // The name, in brackets, may contain spaces; user and system time are the 12th and 13th field after it.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    let ticks = fields.map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    Ok(ticks / TICKS)
}

/// The largest resident memory of a process so far in bytes.
///
/// # Errors
/// When there is no such process, or no `/proc`.
pub fn peak_memory(pid: u32) -> Result<u64> {
    let status =
        fs::read_to_string(format!("/proc/{pid}/status")).context("cannot read a process's memory in /proc")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no peak of memory")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}
