//! Waits for a condition, with a deadline. This module assumes no duration for any server.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::time::{Instant, sleep, timeout};

pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// The crash report of a database has about a hundred.
const LOG_LINES: usize = 120;

/// The limit for steps without a bound of their own: far longer than they take, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_mins(3);

/// Tries until `attempt` succeeds. After `deadline` it returns the last error. One attempt may take as long again.
///
/// # Errors
/// The last error of `attempt`, with the awaited condition.
pub async fn until<T, F>(deadline: Duration, what: &str, mut attempt: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let start = Instant::now();
    loop {
        match within(deadline, attempt()).await {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() > deadline => {
                return Err(error.context(format!("waited {deadline:?} for {what}")));
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// An attempt that takes longer than this has failed.
pub(super) async fn within<T>(time: Duration, attempt: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(time, attempt).await.unwrap_or_else(|_| Err(anyhow!("no answer within {time:?}")))
}

/// `error` with the last lines of a server's log, the only place where a failed start is explained.
pub(super) fn with_log(error: &anyhow::Error, log: &Path) -> anyhow::Error {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().rev().take(LOG_LINES).collect();
    let tail: Vec<&str> = lines.into_iter().rev().collect();
    anyhow!("{error:#}\nlast lines of {}:\n{}", log.display(), tail.join("\n"))
}
