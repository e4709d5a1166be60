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
    /// Why a message waits: `outbox_delayed.reason`. The reasons of dead messages are no enum, as sinks have words of
    /// their own.
    pub enum DelayReason {
        /// The service has scheduled it (`enqueue`).
        Scheduled = "scheduled",
        /// The handler of a worker has put it off (`worker/claims.rs`).
        Snoozed = "snoozed",
        /// It is in the queue of its key, behind a message that waits or is dead (`claim/window.rs`, `retry.rs`).
        Behind = "behind",
        /// An operator has paused its sink or destination (`publish/mod.rs`).
        Paused = "paused",
        /// It may have arrived, and is sent again (`retry.rs`).
        Unconfirmed = "unconfirmed",
        /// The broker or the handler has rejected it, and it is tried again (`retry.rs`).
        Rejected = "rejected",
        /// It must not overtake an earlier message, and was not handed over (`retry.rs`).
        TurnedAway = "turned_away",
        /// Its sink, destination or handler is down (`publish/outlet.rs`, `publish/destination`, `worker/claims.rs`).
        Parked = "parked",
        /// Its destination is missing or refuses the relay (`publish/destination`).
        Unroutable = "unroutable",
        /// No route matches its topic (`read/mod.rs`).
        NoRoute = "no_route",
        /// A replay sends it to a sink that the relay lacks (`read/mod.rs`).
        NoSink = "no_sink",
        /// The database could not give it to the relay (`read/mod.rs`).
        Unread = "unread",
    }
}

/// The end of a message's wait.
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
