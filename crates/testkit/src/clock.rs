//! Clocks that go wrong: those of one process, while it runs.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

use crate::servers::{cache, call::finish};

const SOURCE: &str = include_str!("clock.c");

/// The clocks of the processes started with its variables. They are right until they are changed.
///
/// A preloaded library replaces the clock functions of the C library, so that statically linked programs do not see it.
#[derive(Debug)]
pub struct Clock {
    library: PathBuf,
    file: NamedTempFile,
}

impl Clock {
    /// A right clock. Builds the library once, with the C compiler.
    ///
    /// # Errors
    /// If there is no C compiler.
    pub fn new() -> Result<Self> {
        let digest = Sha256::digest(SOURCE).iter().take(8).fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        let folder = cache::entry(&format!("clock-{digest:016x}"), |target| {
            let source = target.join("clock.c");
            fs::write(&source, SOURCE)?;
            let mut compiler = Command::new("cc");
            compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
            finish(compiler.arg(target.join("clock.so")).arg(source)).map(drop)
        })?;
        let file = NamedTempFile::new()?;
        let clock = Self { library: folder.join("clock.so"), file };
        clock.write(0, 0)?;
        clock.write(1, 0)?;
        Ok(clock)
    }

    /// The environment variables that a process needs.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, String); 2] {
        let text = |path: &Path| path.display().to_string();
        [("LD_PRELOAD", text(&self.library)), ("OUTBOX_CLOCK", text(self.file.path()))]
    }

    /// Steps the real-time clock: from now on it is this number of seconds ahead, or behind.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn ahead(&self, seconds: i64) -> Result<()> {
        self.write(0, seconds.saturating_mul(1_000_000_000))
    }

    /// Sets the real-time clock to this time.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(&self, time: SystemTime) -> Result<()> {
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).context("a time beyond the year 2262");
        let now = nanos(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?)?;
        self.write(0, nanos(time.duration_since(SystemTime::UNIX_EPOCH)?)? - now)
    }

    /// Makes all clocks faster or slower, by this percentage since the start of the process. To be called before that
    /// start.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn faster(&self, percent: i64) -> Result<()> {
        self.write(1, percent.saturating_mul(10_000))
    }

    fn write(&self, number: u64, value: i64) -> Result<()> {
        let file: &File = self.file.as_file();
        file.write_all_at(&value.to_ne_bytes(), number * 8).context("the clock's file cannot be written")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(clock: &Clock) -> Result<i64> {
        let date = finish(Command::new("date").arg("+%s").envs(clock.variables()))?;
        Ok(date.trim().parse::<i64>()?
            - i64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs())?)
    }

    #[test]
    fn a_clock_is_right_until_it_is_stepped() -> Result<()> {
        let clock = Clock::new()?;
        assert!(seconds(&clock)?.abs() <= 2);
        clock.ahead(-7200)?;
        assert!((seconds(&clock)? + 7200).abs() <= 2);
        clock.set(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000))?;
        let date = finish(Command::new("date").arg("+%s").envs(clock.variables()))?;
        assert!(date.starts_with("10000000"), "{date}");
        Ok(())
    }
}
