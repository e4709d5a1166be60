use std::time::Duration;

/// How long rows of the inbox are kept, unless `retention.inbox` of the relay or [`InboxPurge`](crate::InboxPurge) says
/// otherwise.
pub const RETENTION: Duration = Duration::from_secs(7 * 86_400);

/// The inbox forgets a message before its last possible delivery, so that the message could take effect again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the inbox forgets a message after {} h, but it can come again for {} h: raise `retention.inbox` of the relay, or \
     `InboxPurge::processed`",
    hours(.kept), hours(.redelivered)
)]
#[non_exhaustive]
pub struct WindowTooShort {
    /// How long rows of the inbox are kept.
    pub kept: Duration,
    /// The time after its first delivery in which a message can be delivered again.
    pub redelivered: Duration,
}

/// Checks that the inbox remembers a message at least as long as it can come again. It can come from the broker (the
/// retention of a Kafka topic; the longest wait in a queue), and by a replay (the relay's `retention.sent`). For `kept`
/// zero means for ever, as in the relay's configuration; [`Duration::MAX`] stands for a topic that is never cleaned.
pub fn check_window(kept: Duration, redelivered: Duration) -> Result<(), WindowTooShort> {
    if kept.is_zero() || kept >= redelivered { Ok(()) } else { Err(WindowTooShort { kept, redelivered }) }
}

fn hours(time: &Duration) -> u64 {
    time.as_secs().div_ceil(3600)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_ends_before_the_last_delivery_is_too_short() {
        let day = Duration::from_secs(86_400);
        assert!(check_window(day, 2 * day).is_err());
        assert!(check_window(day, Duration::MAX).is_err());
        assert!(check_window(day, day).is_ok());
        assert!(check_window(2 * day, day).is_ok());
        assert!(check_window(Duration::ZERO, Duration::MAX).is_ok(), "kept for ever");
    }

    #[test]
    fn the_error_says_both_times_and_what_to_do() {
        let error = check_window(Duration::from_secs(3600), Duration::from_secs(7 * 86_400)).unwrap_err().to_string();
        assert!(error.contains("1 h") && error.contains("168 h") && error.contains("retention.inbox"), "{error}");
    }
}
