//! The next steps for messages that wait.

use outbox_core::store::reason::DelayReason::{
    self, Behind, NoRoute, NoSink, Parked, Paused, Rejected, Scheduled, Snoozed, TurnedAway, Unconfirmed, Unread,
    Unroutable,
};

use crate::driver_errors::FORBIDDEN;

/// The remedies for words in the error of a destination that refuses.
const REFUSALS: [(&str, &str); 3] = [
    (FORBIDDEN, "give the relay's user the right to write: docs/runbook.md#outboxdestinationrefuses"),
    (
        "is internal",
        "correct the route, or declare the exchange again, not internal: docs/runbook.md#outboxdestinationrefuses",
    ),
    ("", "create the destination or correct the route: docs/runbook.md#outboxdestinationrefuses"),
];

/// The remedy for a message that waits for this reason, with this error; `None` if it needs none.
#[must_use]
pub fn remedy(reason: &str, error: &str) -> Option<&'static str> {
    Some(match DelayReason::of(reason)? {
        Parked => "treat the broker or the handler: docs/runbook.md#outboxsinkdisconnected",
        Paused => "relay controls, then relay resume",
        Unroutable => return REFUSALS.iter().find(|(words, _)| error.contains(words)).map(|(_, remedy)| *remedy),
        NoRoute => "add a route for its topic to the configuration, and restart the relays",
        NoSink => "give the relays of its lane this sink in the configuration, and restart them",
        Unread => "look for this id in the relay's log",
        Scheduled | Snoozed | Behind | Unconfirmed | Rejected | TurnedAway => return None,
    })
}
