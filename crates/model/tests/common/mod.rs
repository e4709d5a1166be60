//! Checks of a model, for both protocols.

use std::{fmt::Debug, hash::Hash};

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

/// Visits every state. Returns the properties that are sometimes true and were.
pub(crate) fn check<M>(protocol: M) -> Vec<&'static str>
where
    M: Model<State: Debug + Hash + Clone + PartialEq + Send + Sync, Action: Debug + Clone + PartialEq + Send + Sync>
        + Send
        + Sync
        + 'static,
{
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    eprintln!("{} states, {} steps deep", checker.unique_state_count(), checker.max_depth());
    reached(&checker)
}

/// The properties that are sometimes true and were. Panics if an invariant did not hold.
pub(crate) fn reached<M>(checker: &impl Checker<M>) -> Vec<&'static str>
where
    M: Model<State: Debug + Hash + Clone + PartialEq, Action: Debug + Clone + PartialEq>,
{
    let mut reached: Vec<_> = checker.discoveries().into_keys().collect();
    reached.retain(|name| {
        let is_failure = checker.model().property(name).expectation == Expectation::Always;
        assert!(!is_failure, "{name}\n{:#?}", checker.discovery(name).map(Path::into_actions));
        true
    });
    reached.sort_unstable();
    reached
}

/// Whether a flaw is found by this invariant.
pub(crate) fn is_found<M>(protocol: M, property: &'static str) -> bool
where
    M: Model<State: Debug + Hash + Clone + PartialEq + Send + Sync, Action: Debug + Clone + PartialEq + Send + Sync>
        + Send
        + Sync
        + 'static,
{
    let one = HasDiscoveries::AnyOf([property].into());
    let checker = protocol.checker().threads(2).finish_when(one).spawn_bfs().join();
    eprintln!("{} states", checker.unique_state_count());
    checker.discovery(property).is_some()
}
