//! The standing claim as a state machine: a claim of one relay on all rows of a lane up to a mark, without a commit for each
//! look. No program implements this design: `ARCHITECTURE.md` gives the reasons.
//!
//! A standing claim is a row of `outbox_claims`, open or closed. Its owner takes rows by looks alone, while the row is open in the
//! look's own read. Every settlement replaces the row by a successor. Anybody may close the row, and then turn it into a list of
//! all rows that its owner may have taken: a claim of the usual kind, which ends with its lease.
//!
//! Time is left out: a row may be closed, and a lease may run out, at any moment. An owner knows of its lease by its own clock, unless
//! it was suspended.

mod actions;
mod database;
mod normal;
mod properties;
mod relay;
mod state;

pub use self::state::{Action, State};

/// A bounded world.
#[derive(Debug, Clone)]
pub struct Standing {
    /// The key of each message; ids begin at 1.
    pub keys: Vec<u64>,
    /// The number of relay processes.
    pub relays: u8,
    /// The number of faults: a lease that runs out, a publish that fails, a lost reply, a crash.
    pub faults: u8,
    /// The number of looks of a process.
    pub looks: u8,
    /// How far the mark is above the highest id that was seen.
    pub ahead: u64,
    /// A protection that is switched off.
    pub flaw: Option<StandingFlaw>,
}

impl Standing {
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

    fn is(&self, flaw: StandingFlaw) -> bool {
        self.flaw == Some(flaw)
    }
}

/// A protection that can be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandingFlaw {
    /// A look reads the claims in a statement before that of the rows.
    ReadsSplit,
    /// Rows are taken whether or not the own row is open in the look.
    OwnRowUnread,
    /// A settlement leaves the same row standing.
    RowKept,
    /// After a lost reply, a receipt passes for that of the last text, whichever was executed.
    TextsAlike,
    /// The successor of a closed row is open, and the row is found by its token.
    KindNotCopied,
    /// Rows that leave memory during a look are taken again by it.
    IdsForgotten,
    /// The keys of failures that are settled during a look are free in it.
    KeysForgotten,
    /// Rows are taken after a text was sent that ends the claim.
    TakesWhileEnding,
    /// Rows above the mark are taken.
    AboveMark,
    /// The rows of a list are read before the claim is closed.
    ListedBeforeClose,
    /// A list has another token than the claim.
    ListWithoutToken,
    /// Rows that were taken over are taken again without a list.
    TakeOversIgnored,
    /// A settlement raises `low` although rows were put back since its look.
    LowWithoutTurn,
    /// A second relay makes a standing claim beside the first.
    TwoStanding,
    /// Other relays claim beside a standing claim.
    OthersClaim,
    /// A claim is settled although it is gone.
    NoFence,
}

impl stateright::Model for Standing {
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
