use std::time::Duration;

use outbox_core::{EPOCH_HEADER, SEQUENCE_HEADER, Sequence, SequenceNumber};

/// The policy for a message of a sequenced key that is not the next one. Each such message is counted and warned of.
///
/// A message that was missing and comes late is always processed. A message that becomes dead at the relay, or expires,
/// leaves a gap for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SequencePolicy {
    /// It is processed as it comes.
    #[default]
    Accept,
    /// Behind a gap it waits for the missing message, at most this duration, and lets later arrivals of its key go
    /// first; then it is processed. A message with a repeated number is dead, with the reason `sequence`.
    Wait(Duration),
    /// Behind a gap it is dead, with the reason `sequence`, and so are all later messages of its key, until
    /// [`retry_dead`](crate::retry_dead()) has processed the dead ones. Run that when the missing message has come. A
    /// message with a repeated number is dead, too.
    Refuse,
}

/// The next step of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SequenceStep {
    Process,
    Wait,
    Refuse,
}

impl SequencePolicy {
    /// `waited`: since its arrival.
    pub(crate) fn step(self, seen: Sequence, waited: Duration) -> SequenceStep {
        match (self, seen) {
            (Self::Wait(limit), Sequence::Gap { .. }) if waited < limit => SequenceStep::Wait,
            (Self::Refuse, Sequence::Gap { .. }) | (Self::Wait(_) | Self::Refuse, Sequence::Repeated) => {
                SequenceStep::Refuse
            }
            _ => SequenceStep::Process,
        }
    }
}

/// The number of a sequenced message, and its key.
pub(crate) fn number(delivery: &crate::Delivery) -> Option<(SequenceNumber, &[u8])> {
    // A number that no outbox would send has no row in the table either.
    let number = delivery.header(SEQUENCE_HEADER)?.parse().ok().filter(|number| (1..u64::MAX).contains(number))?;
    let epoch = delivery.header(EPOCH_HEADER).map_or(Some(0), |epoch| epoch.parse().ok())?;
    let number = SequenceNumber { epoch, number };
    let key = delivery.contents.key.as_deref().filter(|key| key.len() <= 1024)?;
    (delivery.contents.topic.is_ascii() && delivery.contents.topic.len() <= 249).then_some((number, key))
}

/// For metrics and logs.
pub(crate) fn word(seen: Sequence) -> &'static str {
    match seen {
        Sequence::Next => "next",
        Sequence::Gap { .. } => "gap",
        Sequence::Late => "late",
        Sequence::Repeated => "repeated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_decides_what_becomes_of_a_gap_and_of_a_repetition() {
        let gap = Sequence::Gap { expected: 2 };
        let second = Duration::from_secs(1);
        let wait = SequencePolicy::Wait(2 * second);
        let cases = [
            (SequencePolicy::Accept, gap, SequenceStep::Process),
            (SequencePolicy::Accept, Sequence::Repeated, SequenceStep::Process),
            (wait, gap, SequenceStep::Wait),
            (SequencePolicy::Wait(second), gap, SequenceStep::Process),
            (wait, Sequence::Repeated, SequenceStep::Refuse),
            (wait, Sequence::Late, SequenceStep::Process),
            (SequencePolicy::Refuse, gap, SequenceStep::Refuse),
            (SequencePolicy::Refuse, Sequence::Repeated, SequenceStep::Refuse),
            (SequencePolicy::Refuse, Sequence::Late, SequenceStep::Process),
            (SequencePolicy::Refuse, Sequence::Next, SequenceStep::Process),
        ];
        for (policy, seen, step) in cases {
            assert_eq!(policy.step(seen, second), step, "{policy:?} {seen:?}");
        }
    }
}
