//! The claim protocol as a state machine, for a model checker. It tries every order of the statements of two relays,
//! the commits of services, and a bounded number of faults.
//!
//! The database is a set of tables whose texts are atomic (`database.rs`); a look reads one moment (`claimer.rs`). The
//! relay's own functions make a relay's decisions: `window::gaps` and `select`, `Foreign::bar`, `Chains`,
//! `retry::decide` and `behind`. Time is left out: a lease may run out, and a delayed message may be due, at any
//! moment. So are attempts (they only decide when a message is dead), take-overs (they only choose what is claimed
//! alone) and bytes.

mod actions;
mod claimer;
mod database;
mod ids;
mod normal;
mod properties;
mod protocol;
mod relay;
mod state;
pub mod tail;

pub use protocol::{Event, Flaw, Protocol};
pub use state::{Action, State};

impl stateright::Model for Protocol {
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

    fn within_boundary(&self, state: &State) -> bool {
        state.relays.iter().all(|relay| relay.pass <= self.passes)
    }

    fn properties(&self) -> Vec<stateright::Property<Self>> {
        properties::all()
    }
}
