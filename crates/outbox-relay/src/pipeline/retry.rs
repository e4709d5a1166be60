//! Decides the outcome of a failed publish: one pure function.

use std::time::Duration;

pub use outbox_core::store::reason::DelayReason;
use outbox_core::store::settle::{Dead, Delayed, Settlement};

use crate::{
    settings::{AfterDead, OnRejected, RetryConfig},
    sink::PublishError,
};

/// The wait of a message that a sink turned away.
const TURNED_AWAY: Duration = Duration::from_secs(1);

/// The outcome of a message that was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// It is pending again, unchanged.
    Release,
    /// It waits, and the later messages of its key wait behind it.
    Delay {
        /// The duration of the wait.
        wait: Duration,
        /// Whether an attempt was spent.
        spent: bool,
        /// Why it waits.
        reason: DelayReason,
    },
    /// It waits in the queue of its key, behind an earlier message that waits or is dead.
    Behind,
    /// It is given up.
    Dead {
        /// The reason, as in the metric `outbox_relay_dead_messages_total`.
        reason: &'static str,
        /// Whether an attempt was spent.
        spent: bool,
        /// Whether later messages of its key wait for an operator.
        holds_key: bool,
    },
}

impl Disposition {
    /// Notes the outcome of a message in a settlement. A released message is in no list.
    pub(crate) fn note(self, settlement: &mut Settlement, id: u64, error: String) {
        match self {
            Self::Release => {}
            Self::Delay { wait, spent, reason } => {
                settlement.delayed.push(Delayed { id, wait: Some(wait), spent, reason, error });
            }
            Self::Behind => settlement.delayed.push(Delayed::behind(id)),
            Self::Dead { reason, spent, holds_key } => {
                settlement.dead.push(Dead { id, spent, holds_key, reason, error });
            }
        }
    }
}

/// A route's policy for failures.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// The outcome of a rejected message.
    pub on_rejected: OnRejected,
    /// The effect of a dead message on its key.
    pub after_dead: AfterDead,
    /// The back-off, and the limit of attempts.
    pub retry: RetryConfig,
}

impl Policy {
    /// Whether a rejected message holds back the later ones of its key. If so, these must not be in flight when it is
    /// rejected, whatever order the sink keeps.
    #[must_use]
    pub fn rejection_holds_key(self) -> bool {
        self.on_rejected == OnRejected::Retry || self.after_dead == AfterDead::Block
    }
}

/// Decides the outcome of a message. An unroutable one must be past its grace time. `attempts` were spent before this
/// one; `random` is between 0 and 1.
#[must_use]
pub fn decide(error: &PublishError, attempts: u16, policy: Policy, random: f64) -> Disposition {
    let again = |reason| delay_or_bury(reason, attempts, policy, random);
    match error {
        PublishError::Unavailable(_) => Disposition::Release,
        // Not at once: it would be claimed and turned away repeatedly, until the message before it has an outcome.
        PublishError::TurnedAway(_) => {
            Disposition::Delay { wait: TURNED_AWAY, spent: false, reason: DelayReason::TurnedAway }
        }
        PublishError::Unconfirmed(_) => again(DelayReason::Unconfirmed),
        PublishError::Rejected { .. } | PublishError::Unroutable { .. } if policy.on_rejected == OnRejected::Retry => {
            again(DelayReason::Rejected)
        }
        PublishError::Rejected { reason, .. } | PublishError::Unroutable { reason, .. } => dead(reason, true, policy),
    }
}

fn delay_or_bury(reason: DelayReason, attempts: u16, policy: Policy, random: f64) -> Disposition {
    if usize::from(attempts) + 1 >= policy.retry.max_attempts {
        return dead("attempts_exhausted", true, policy);
    }
    Disposition::Delay { wait: wait(attempts, &policy.retry, random), spent: true, reason }
}

/// Returns the outcome of a message that is given up.
#[must_use]
pub fn dead(reason: &'static str, spent: bool, policy: Policy) -> Disposition {
    Disposition::Dead { reason, spent, holds_key: policy.after_dead == AfterDead::Block }
}

/// Returns the wait before a retry: exponential back-off with full jitter, between zero and `base × 2^attempts`, at
/// most `max`. Full jitter spreads many retries better than equal steps do (Marc Brooker, "Exponential Backoff and
/// Jitter", 2015).
#[must_use]
pub fn wait(attempts: u16, retry: &RetryConfig, random: f64) -> Duration {
    let doubled = 2_u32.saturating_pow(u32::from(attempts.min(31)));
    retry.base.saturating_mul(doubled).min(retry.max).mul_f64(random.clamp(0.0, 1.0))
}

/// Returns the outcome of a key's later messages after this outcome of an earlier one; `None` if they go on.
#[must_use]
pub fn behind(disposition: &Disposition) -> Option<Disposition> {
    match disposition {
        Disposition::Release => Some(Disposition::Release),
        Disposition::Delay { .. } | Disposition::Behind | Disposition::Dead { holds_key: true, .. } => {
            Some(Disposition::Behind)
        }
        Disposition::Dead { holds_key: false, .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy { on_rejected: OnRejected::Dead, after_dead: AfterDead::Skip, retry: RETRY };
    const RETRY: RetryConfig =
        RetryConfig { base: Duration::from_secs(1), max: Duration::from_secs(60), max_attempts: 5 };

    fn unconfirmed() -> PublishError {
        PublishError::Unconfirmed("time-out".into())
    }

    fn rejected() -> PublishError {
        PublishError::Rejected { reason: "too_large", detail: String::new() }
    }

    #[test]
    fn an_outage_spends_nothing() {
        let error = PublishError::Unavailable("down".into());
        assert_eq!(decide(&error, 4, POLICY, 0.5), Disposition::Release);
    }

    #[test]
    fn what_was_turned_away_spends_nothing_and_does_not_come_back_at_once() {
        let error = PublishError::TurnedAway("an earlier batch failed".into());
        let delay = Disposition::Delay { wait: TURNED_AWAY, spent: false, reason: DelayReason::TurnedAway };
        assert_eq!(decide(&error, 4, POLICY, 0.5), delay);
    }

    #[test]
    fn the_wait_doubles_up_to_the_limit() {
        let waits: Vec<_> = [0, 1, 2, 3].map(|attempts| wait(attempts, &RETRY, 1.0).as_secs()).into();
        assert_eq!(waits, [1, 2, 4, 8]);
        assert_eq!(wait(40, &RETRY, 1.0), RETRY.max);
        assert_eq!(wait(3, &RETRY, 0.0), Duration::ZERO);
    }

    #[test]
    fn an_unconfirmed_message_is_retried_until_its_attempts_are_spent() {
        let delay = Disposition::Delay { wait: Duration::from_secs(4), spent: true, reason: DelayReason::Unconfirmed };
        assert_eq!(decide(&unconfirmed(), 3, POLICY, 0.5), delay);
        let end = Disposition::Dead { reason: "attempts_exhausted", spent: true, holds_key: false };
        assert_eq!(decide(&unconfirmed(), 4, POLICY, 0.5), end);
    }

    #[test]
    fn a_rejected_message_is_dead_at_once_unless_its_route_retries() {
        let end = Disposition::Dead { reason: "too_large", spent: true, holds_key: false };
        assert_eq!(decide(&rejected(), 0, POLICY, 0.5), end);
        let policy = Policy { on_rejected: OnRejected::Retry, ..POLICY };
        let again = decide(&rejected(), 0, policy, 1.0);
        assert_eq!(again, Disposition::Delay { wait: RETRY.base, spent: true, reason: DelayReason::Rejected });
    }

    #[test]
    fn messages_behind_a_released_one_go_back_too_and_those_behind_one_that_waits_queue_up() {
        assert_eq!(behind(&Disposition::Release), Some(Disposition::Release));
        let delay = Disposition::Delay { wait: Duration::from_secs(4), spent: true, reason: DelayReason::Unconfirmed };
        assert_eq!([delay, Disposition::Behind].map(|it| behind(&it)), [Some(Disposition::Behind); 2]);
    }

    #[test]
    fn only_a_dead_message_of_a_blocking_route_holds_its_key() {
        let policy = Policy { after_dead: AfterDead::Block, ..POLICY };
        assert!(behind(&decide(&rejected(), 0, policy, 0.5)).is_some());
        assert_eq!(behind(&decide(&rejected(), 0, POLICY, 0.5)), None);
    }
}
