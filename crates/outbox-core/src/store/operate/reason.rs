//! Why messages wait.

/// Declares an enum whose variants have stable words, such as those of a column.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $vis enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// All variants.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns its word.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            /// Returns the variant with this word. A later release may have others.
            #[must_use]
            pub fn of(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

words! {
    /// Why a message waits: `outbox_delayed.reason`, and a label of `outbox_relay_retries_scheduled_total`, whose help
    /// says what each word means. The reasons of dead messages are no enum, as sinks have words of their own.
    pub enum DelayReason {
        Scheduled = "scheduled",
        Snoozed = "snoozed",
        Behind = "behind",
        Paused = "paused",
        Unconfirmed = "unconfirmed",
        Rejected = "rejected",
        TurnedAway = "turned_away",
        Parked = "parked",
        Unroutable = "unroutable",
        NoRoute = "no_route",
        NoSink = "no_sink",
        Unread = "unread",
    }
}

/// What ends the wait of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// The time that its service or handler has chosen.
    Time,
    /// An earlier message of its key.
    Key,
    /// The end of a pause.
    Resume,
    /// Its next attempt.
    Retry,
    /// A sink, destination, route or read that fails. Another relay may succeed.
    Destination,
}

impl DelayReason {
    /// Returns what ends the wait.
    #[must_use]
    pub const fn waits_for(self) -> WaitsFor {
        match self {
            Self::Scheduled | Self::Snoozed => WaitsFor::Time,
            Self::Behind => WaitsFor::Key,
            Self::Paused => WaitsFor::Resume,
            Self::Unconfirmed | Self::Rejected | Self::TurnedAway => WaitsFor::Retry,
            Self::Parked | Self::Unroutable | Self::NoRoute | Self::NoSink | Self::Unread => WaitsFor::Destination,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DelayReason;
    use crate::store::operate::stats::OPERATOR;

    #[test]
    fn the_statements_name_known_reasons() {
        let words = OPERATOR.split(", ").map(|word| word.trim_matches('\''));
        assert_eq!(words.filter(|word| DelayReason::of(word).is_some_and(|it| it.word() == *word)).count(), 5);
    }
}
