//! Order per key while messages are in flight.
//!
//! If the sink keeps no order by itself, a key has one message in flight, and the later ones queue behind it. When
//! a message fails, messages of its key that were claimed before the failure was in the database share its outcome. The
//! claimer could not know of the failure. The database itself holds back all later messages.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::{DefaultHasher, Hash, Hasher},
};

use outbox_core::store::claim::lease::ClaimLease;

use crate::{pipeline::retry::Disposition, state::queues::LaneKey};

/// The messages in flight, by key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chains<T> {
    /// Keys with a message in flight, and the messages that wait behind it.
    busy: HashMap<LaneKey, VecDeque<T>>,
    blocked: HashMap<LaneKey, Block>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Block {
    disposition: Disposition,
    /// Claims with messages that share the outcome.
    claims: HashMap<ClaimLease, BlockedPart>,
}

/// The part of a key that one claim blocks: the messages behind the claim's first unsent message. Messages with smaller
/// ids may go. Without that exception two claims would block each other in turn for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct BlockedPart {
    first: u64,
    /// Set when the claim is settled: the claimer's last pass that may have looked before.
    until: Option<u64>,
}

/// The next step of a message.
#[derive(Debug, PartialEq, Eq)]
pub enum ChainEntry<T> {
    /// It may be published.
    Go(T),
    /// It waits behind an earlier message of its key.
    Queued,
    /// It shares the outcome of an earlier message of its key.
    Blocked(T, Disposition),
}

/// The key, claim and id of a message.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// Its key; a hash of 0 has no order.
    pub key: LaneKey,
    /// Its claim.
    pub lease: ClaimLease,
    /// The pass in which it was claimed.
    pub pass: u64,
    /// Its id.
    pub id: u64,
}

impl Block {
    /// Forgets the claims for which no message from this pass on has to wait. Returns whether any is left.
    fn holds(&mut self, pass: u64) -> bool {
        self.claims.retain(|_, held| held.until.is_none_or(|until| pass <= until));
        !self.claims.is_empty()
    }
}

impl<T> Default for Chains<T> {
    fn default() -> Self {
        Self { busy: HashMap::new(), blocked: HashMap::new() }
    }
}

impl<T> Chains<T> {
    /// Decides on a message that was read. `alone`: no other message of its key may be in flight with it.
    pub fn admit(&mut self, origin: Origin, alone: bool, message: T) -> ChainEntry<T> {
        if origin.key.1 == 0 {
            return ChainEntry::Go(message);
        }
        if let Some(disposition) = self.fate(origin) {
            self.hold(origin, &disposition);
            return ChainEntry::Blocked(message, disposition);
        }
        match self.busy.entry(origin.key) {
            Entry::Occupied(mut queue) => {
                queue.get_mut().push_back(message);
                ChainEntry::Queued
            }
            Entry::Vacant(vacant) => {
                if alone {
                    vacant.insert(VecDeque::new());
                }
                ChainEntry::Go(message)
            }
        }
    }

    fn fate(&mut self, origin: Origin) -> Option<Disposition> {
        let block = self.blocked.get_mut(&origin.key)?;
        if !block.holds(origin.pass) {
            self.blocked.remove(&origin.key);
            return None;
        }
        block.claims.values().any(|held| held.first < origin.id).then_some(block.disposition)
    }

    /// Ends the message in flight. Returns the next one of its key, which may be published.
    pub fn advance(&mut self, key: LaneKey) -> Option<T> {
        let queue = self.busy.get_mut(&key)?;
        let next = queue.pop_front();
        if next.is_none() {
            self.busy.remove(&key);
        }
        next
    }

    /// Notes that the message in flight failed. Messages that wait behind it share `disposition`, and so do those of
    /// claims made before it is settled. Returns the waiting messages.
    pub fn block(&mut self, origin: Origin, disposition: &Disposition) -> VecDeque<T> {
        self.hold(origin, disposition);
        self.busy.remove(&origin.key).unwrap_or_default()
    }

    /// Does the same for a message that was never to be published: the messages read before it go on.
    pub fn hold(&mut self, origin: Origin, disposition: &Disposition) {
        if origin.key.1 == 0 {
            return;
        }
        let new = || Block { disposition: *disposition, claims: HashMap::new() };
        let block = self.blocked.entry(origin.key).or_insert_with(new);
        let held = block.claims.entry(origin.lease).or_insert(BlockedPart { first: origin.id, until: None });
        (held.first, held.until) = (held.first.min(origin.id), None);
    }

    /// Notes that a claim is settled. `pass` is the last pass of its claimer that began before.
    pub fn settled(&mut self, lease: ClaimLease, pass: u64) {
        for held in self.blocked.values_mut().filter_map(|block| block.claims.get_mut(&lease)) {
            held.until = Some(pass);
        }
    }

    /// Forgets the keys of a lane for which no message from this pass on has to wait. Claims of a lane come in the
    /// order of their passes.
    pub fn prune(&mut self, lane: u16, pass: u64) {
        self.blocked.retain(|key, block| key.0 != lane || block.holds(pass));
    }

    /// Returns the number of messages of a key that wait.
    #[must_use]
    pub fn waiting_of(&self, key: LaneKey) -> usize {
        self.busy.get(&key).map_or(0, VecDeque::len)
    }

    /// Whether any message waits.
    #[must_use]
    pub fn waiting(&self) -> bool {
        self.busy.values().any(|queue| !queue.is_empty())
    }

    /// Takes out all waiting messages.
    pub fn drain(&mut self) -> Vec<T> {
        self.busy.values_mut().flat_map(std::mem::take).collect()
    }
}

/// For the model checker, which distinguishes states by their hashes.
impl<T: Hash> Hash for Chains<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        unordered(self.busy.iter()).hash(state);
        unordered(self.blocked.iter().map(|(key, block)| {
            let Block { disposition, claims } = block;
            (key, disposition, unordered(claims.iter()))
        }))
        .hash(state);
    }
}

/// Returns a hash that does not depend on the order of the items.
fn unordered<T: Hash>(items: impl Iterator<Item = T>) -> u64 {
    items.fold(0, |sum, item| {
        let mut hasher = DefaultHasher::new();
        item.hash(&mut hasher);
        sum.wrapping_add(hasher.finish())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: LaneKey = (0, 7);

    /// The id of the message is ten times the number of the claim.
    fn origin(claim_id: u64, pass: u64) -> Origin {
        Origin { key: KEY, lease: lease(claim_id), pass, id: 10 * claim_id }
    }

    fn lease(claim_id: u64) -> ClaimLease {
        ClaimLease { claim_id, lease_token: 1 }
    }

    #[test]
    fn a_key_has_one_message_on_the_way() {
        let mut chains = Chains::default();
        assert_eq!(chains.admit(origin(1, 1), true, 'a'), ChainEntry::Go('a'));
        assert_eq!(chains.admit(origin(1, 1), true, 'b'), ChainEntry::Queued);
        assert_eq!((chains.advance(KEY), chains.advance(KEY)), (Some('b'), None));
        assert_eq!(chains.admit(origin(2, 2), true, 'c'), ChainEntry::Go('c'));
    }

    #[test]
    fn what_is_held_back_from_the_start_holds_back_nothing_before_it() {
        let mut chains = Chains::default();
        assert_eq!(chains.admit(origin(1, 1), true, 'a'), ChainEntry::Go('a'));
        assert_eq!(chains.admit(origin(1, 1), true, 'b'), ChainEntry::Queued);
        chains.hold(origin(1, 1), &Disposition::Release);
        let later = Origin { id: 11, ..origin(1, 1) };
        assert_eq!(chains.admit(later, true, 'c'), ChainEntry::Blocked('c', Disposition::Release));
        assert_eq!((chains.advance(KEY), chains.advance(KEY)), (Some('b'), None));
    }

    #[test]
    fn claims_that_follow_each_other_do_not_hold_each_other_back_for_ever() {
        let mut chains = Chains::default();
        chains.block(origin(1, 1), &Disposition::Release);
        assert_eq!(chains.admit(origin(2, 2), true, 'b'), ChainEntry::Blocked('b', Disposition::Release));
        chains.settled(lease(1), 2);
        // The message of the first claim was pending again before the second claim was settled.
        let again = Origin { id: 10, ..origin(3, 3) };
        assert_eq!(chains.admit(again, true, 'a'), ChainEntry::Go('a'));
        // A message behind that of the second claim must wait until the latter is known to be pending again.
        let behind = Origin { id: 21, ..origin(3, 3) };
        assert_eq!(chains.admit(behind, true, 'c'), ChainEntry::Blocked('c', Disposition::Release));
    }

    #[test]
    fn a_block_is_forgotten_by_what_was_claimed_after_its_end() {
        let mut chains = Chains::<char>::default();
        chains.block(origin(1, 1), &Disposition::Release);
        chains.prune(0, 9);
        assert_eq!(chains.fate(origin(2, 2)), Some(Disposition::Release));
        chains.settled(lease(1), 3);
        chains.settled(lease(2), 3);
        chains.prune(1, 9);
        chains.prune(0, 3);
        assert_eq!(chains.blocked.len(), 1);
        chains.prune(0, 4);
        assert_eq!(chains.blocked.len(), 0);
    }

    #[test]
    fn messages_without_key_wait_for_nothing() {
        let mut chains = Chains::default();
        let origin = Origin { key: (0, 0), ..origin(1, 1) };
        assert_eq!(chains.admit(origin, true, 'a'), ChainEntry::Go('a'));
        assert_eq!(chains.admit(origin, true, 'b'), ChainEntry::Go('b'));
    }

    #[test]
    fn a_failure_takes_the_rest_of_its_key_along_until_the_database_knows() {
        let mut chains = Chains::default();
        assert_eq!(chains.admit(origin(1, 1), true, 'a'), ChainEntry::Go('a'));
        assert_eq!(chains.admit(origin(1, 1), true, 'b'), ChainEntry::Queued);
        assert_eq!(chains.block(origin(1, 1), &Disposition::Release), ['b']);
        assert_eq!(chains.admit(origin(2, 2), true, 'c'), ChainEntry::Blocked('c', Disposition::Release));
        chains.settled(lease(1), 2);
        assert_eq!(chains.admit(origin(3, 3), true, 'd'), ChainEntry::Blocked('d', Disposition::Release));
        chains.settled(lease(2), 3);
        chains.settled(lease(3), 4);
        assert_eq!(chains.admit(origin(4, 4), true, 'e'), ChainEntry::Blocked('e', Disposition::Release));
        chains.settled(lease(4), 5);
        assert_eq!(chains.admit(origin(5, 6), true, 'f'), ChainEntry::Go('f'));
    }

    #[test]
    fn lanes_do_not_share_keys() {
        let mut chains = Chains::default();
        chains.block(origin(1, 1), &Disposition::Release);
        assert_eq!(chains.admit(Origin { key: (1, 7), ..origin(2, 1) }, true, 'a'), ChainEntry::Go('a'));
        assert!(matches!(chains.admit(origin(2, 1), false, 'a'), ChainEntry::Blocked('a', _)));
    }

    #[test]
    fn everything_that_waits_can_be_taken_out() {
        let mut chains = Chains::default();
        for message in ['a', 'b', 'c'] {
            chains.admit(origin(1, 1), true, message);
        }
        assert_eq!(chains.drain(), ['b', 'c']);
    }
}
