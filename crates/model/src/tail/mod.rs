//! The tail as a state machine: a claim of one relay on all rows of a lane up to a mark, whose rows come from the
//! binary log. `ARCHITECTURE.md` has its rules.
//!
//! A tail is a row of `outbox_claims`, open or closed. Its owner takes rows as the log shows them, in the order of the
//! commits, as long as the log shows no close. Every settlement replaces the row by a successor. Anybody may close the
//! row, and then turn it into a list of all rows that its owner may have taken: a claim of the usual kind, which ends
//! with its lease.
//!
//! The log may show each relay any prefix. Time is left out: a row may be closed, and a lease may run out, at any
//! moment. An owner knows of its lease by its own clock, unless it was suspended.

mod actions;
mod database;
mod normal;
mod properties;
mod relay;
mod state;
mod stream;

pub use self::{actions::Action, state::State};

/// A bounded world.
#[derive(Debug, Clone)]
pub struct Tail {
    /// The key of each message; ids begin at 1.
    pub keys: Vec<u64>,
    /// The number of relay processes.
    pub relays: u8,
    /// The number of faults: a lease that runs out, a publish that fails, a lost reply, a crash, a stream that breaks.
    pub faults: u8,
    /// The number of looks of a process.
    pub looks: u8,
    /// How far the mark is above the highest id that was seen.
    pub ahead: u64,
    /// Whether one relay is of an earlier release, which knows no tails.
    pub has_earlier: bool,
    /// Whether services may prepare a transaction (XA): the log shows its rows before its commit.
    pub has_prepared: bool,
    /// Whether relays also renew while their lease lasts.
    pub has_renewals: bool,
    /// A protection that is switched off.
    pub flaw: Option<TailFlaw>,
}

impl Tail {
    fn key(&self, id: u64) -> u64 {
        let at = usize::try_from(id).unwrap_or_default().saturating_sub(1);
        self.keys.get(at).copied().unwrap_or(0)
    }

    fn last(&self) -> u64 {
        self.keys.len() as u64
    }

    /// The messages that have the key of one of these.
    fn of_keys(&self, messages: crate::ids::Ids) -> crate::ids::Ids {
        (1..=self.last()).filter(|id| messages.iter().any(|other| self.key(other) == self.key(*id))).collect()
    }

    fn is(&self, flaw: TailFlaw) -> bool {
        self.flaw == Some(flaw)
    }
}

/// A protection that can be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailFlaw {
    /// The stream begins at the end of the log after the read of the pending rows.
    StreamOpenedLate,
    /// Events before that of the own claim count.
    EarlierEventsCount,
    /// Rows come from the log alone: those that were pending before are not read.
    PendingUnread,
    /// Events are applied before the pending rows are read.
    EventsBeforeRead,
    /// Rows of a transaction are taken before its commit.
    TakenBeforeCommit,
    /// Rows of a prepared transaction are forgotten, and the tail goes on at its commit.
    PreparedForgotten,
    /// A close in the log is not looked at.
    CloseUnseen,
    /// The pending rows are taken whether or not the own row is open in their read.
    OwnRowUnread,
    /// A tail is made beside lists.
    ListsBeside,
    /// A settlement leaves the same row standing.
    RowKept,
    /// After a lost reply, a receipt passes for that of the last text, whichever was executed.
    TextsAlike,
    /// The successor of a closed row is open, and is listed in place of its predecessor.
    KindNotCopied,
    /// A settlement reads the rows that it delays without locks.
    DelayedUnlocked,
    /// A settled row is forgotten at the reply, and not at the event of its removal.
    IdsForgotten,
    /// A failure holds its key until its settlement is answered, and not until the log shows it.
    KeysForgotten,
    /// A renewal in the log passes for the end of its claim: a settlement that follows counts as shown.
    RenewalIsEnd,
    /// Arrivals of a held key are left alone.
    ArrivalsLeft,
    /// Rows are taken after a text was sent that ends the claim.
    TakesWhileEnding,
    /// Rows above the mark are taken.
    AboveMark,
    /// The rows of a list are read before the claim is closed.
    ListedBeforeClose,
    /// A tail is made although rows were taken over.
    TakeOversIgnored,
    /// Relays of an earlier release are not locked out.
    NoSeal,
    /// They are let in again when the tail is closed.
    UnsealedAtClose,
    /// The version goes on where it was before the tail.
    VersionRepeats,
    /// A claim is settled although it is gone.
    NoFence,
}

impl stateright::Model for Tail {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions::services(self, state, actions);
        actions::database(self, state, actions);
        for relay in 0..state.relays.len() {
            actions::relay(self, state, relay, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        next.faults -= u8::from(action.is_fault());
        next.apply(self, &action);
        normal::normalise(&mut next);
        Some(next)
    }

    fn properties(&self) -> Vec<stateright::Property<Self>> {
        properties::all()
    }
}
