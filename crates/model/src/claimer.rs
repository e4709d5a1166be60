//! The claimer: looks, chooses with the relay's own functions, and claims.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::store::claim::{ForeignClaim, Pending, Seen, lease::ClaimLease};
use outbox_relay::{
    pipeline::claim::{
        Foreign,
        window::{self, Barred, Limits},
    },
    state::leases::Tenure,
};

use crate::{
    database::{Claim, Database, NewClaim},
    ids::Ids,
    protocol::{Flaw, Protocol},
    relay::Relay,
};

/// The parts of a look. Without a flaw, all read what is committed at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Statement {
    ClaimIds,
    Claims,
    Candidates,
    Gaps,
    Waiting,
    /// Only with [`Flaw::LateVersion`].
    Version,
}

/// One of the relay's own claims, as known when the look began.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Own {
    pub claim: u64,
    pub messages: Ids,
    pub may_return: bool,
}

/// The rows and claims that the look has read so far.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Look {
    pub next: Statement,
    pub version: u64,
    pub low: u64,
    /// The floor before the look.
    floor: u64,
    pub own: Vec<Own>,
    /// The gaps to look at, and the id above which the look reads.
    gaps: Ids,
    above: u64,
    /// The key whose messages are left out; 0 for none.
    without: u64,
    pub claim_ids: Vec<u64>,
    pub claims: Vec<Claim>,
    /// The position of a locking scan.
    scanned: u64,
    fresh: Ids,
    below: Ids,
    waiting: Ids,
}

/// What the claimer is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) enum Claimer {
    #[default]
    Idle,
    Looking(Look),
    Claiming(NewClaim),
    /// The reply was lost: asks whether the claim is live.
    Finding(NewClaim),
}

impl Claimer {
    /// `Idle` if there is nothing to claim and no row to move.
    pub(crate) fn claiming(new: NewClaim) -> Self {
        if new.claims.is_empty() && new.behind.is_empty() { Self::Idle } else { Self::Claiming(new) }
    }
}

/// Begins a look: notes what the process itself knows, then reads the head. The look leaves out a key, if it is not 0.
pub(crate) fn begin(protocol: &Protocol, db: &Database, relay: &mut Relay, without: u64) -> Look {
    let own = relay.tenures.iter().map(|t| Own { claim: t.claim, messages: t.messages, may_return: t.may_return });
    let own: Vec<Own> = own.collect();
    let tenures: Vec<_> = own.iter().map(|own| tenure(protocol, own)).collect();
    let claimed = outbox_relay::pipeline::claim::claimed_ids(&tenures, &foreign(protocol, relay).claims);
    let floor = db.floor();
    let gaps = window::gaps(relay.start.id(), &claimed);
    let below = gaps.below.into_iter().flatten().take_while(|id| *id <= 7).filter(|id| *id > 0).collect();
    let next = if protocol.flaw == Some(Flaw::LateVersion) { Statement::Candidates } else { Statement::ClaimIds };
    Look {
        next,
        version: db.version,
        low: db.low,
        floor,
        own,
        gaps: below,
        above: gaps.above,
        without,
        claim_ids: Vec::new(),
        claims: Vec::new(),
        scanned: 0,
        fresh: Ids::default(),
        below: Ids::default(),
        waiting: Ids::default(),
    }
}

impl Look {
    /// Whether a flaw makes the next part a separate statement, which also reads later commits.
    pub(crate) fn is_interrupted(&self, flaw: Option<Flaw>) -> bool {
        match flaw {
            Some(Flaw::GapsFirst | Flaw::LockingScan) => self.next == Statement::Candidates,
            Some(Flaw::LateVersion) => self.next == Statement::Version,
            // Time passes after the look; and a relay of an earlier release looks part by part.
            Some(Flaw::FloorAfterLook | Flaw::PromoteKeepsVersion) => true,
            _ => false,
        }
    }

    /// Reads the next part. Returns whether it was the last.
    pub(crate) fn step(&mut self, protocol: &Protocol, db: &Database, relay: &Relay) -> bool {
        let flaw = protocol.flaw;
        match self.next {
            Statement::ClaimIds => {
                self.claim_ids = db.claims.iter().map(|c| c.id).filter(|id| *id > relay.gone).collect();
            }
            Statement::Claims => {
                let new = |c: &&Claim| c.id > relay.known.max(relay.gone) && c.owner != relay.owner;
                self.claims = db.claims.iter().filter(new).cloned().collect();
            }
            Statement::Candidates if flaw == Some(Flaw::LockingScan) => {
                // One row after the other, each as it is at that moment.
                self.scanned = self.scanned.max(self.above) + 1;
                if db.pending.contains(self.scanned) {
                    self.fresh.insert(self.scanned);
                }
                if self.scanned < protocol.last() && self.fresh.len() < protocol.claim_messages {
                    return false;
                }
            }
            Statement::Candidates => {
                let above = self.not_left_out(protocol, db).filter(|id| *id > self.above);
                self.fresh = above.take(protocol.claim_messages).collect();
            }
            Statement::Gaps if flaw == Some(Flaw::NoGaps) => {}
            Statement::Gaps => {
                let below = self.not_left_out(protocol, db).filter(|id| self.gaps.contains(*id));
                self.below = below.take(2 * protocol.claim_messages).collect();
            }
            Statement::Waiting => self.waiting = db.delayed,
            Statement::Version => (self.version, self.low) = (db.version, db.low),
        }
        self.advance(flaw)
    }

    fn not_left_out(&self, protocol: &Protocol, db: &Database) -> impl Iterator<Item = u64> {
        db.readable(protocol.flaw).iter().filter(|id| self.without == 0 || protocol.key(*id) != self.without)
    }

    fn advance(&mut self, flaw: Option<Flaw>) -> bool {
        use Statement::{Candidates, ClaimIds, Claims, Gaps, Version, Waiting};
        let order: &[Statement] = match flaw {
            Some(Flaw::GapsFirst) => &[ClaimIds, Claims, Gaps, Candidates, Waiting],
            Some(Flaw::LateVersion) => &[Candidates, Gaps, Version, ClaimIds, Claims, Waiting],
            _ => &[ClaimIds, Claims, Candidates, Gaps, Waiting],
        };
        let next = order.iter().skip_while(|statement| **statement != self.next).nth(1);
        self.next = next.copied().unwrap_or(self.next);
        next.is_none()
    }

    /// Chooses, as `outbox_relay::pipeline::claim` does.
    pub(crate) fn choose(self, protocol: &Protocol, db: &Database, relay: &mut Relay) -> Claimer {
        let seen = self.seen(protocol);
        let own = self.own.iter().map(|own| tenure(protocol, own)).collect::<Vec<_>>();
        let mut barred = self.bar(protocol, relay, &seen, &own);
        for id in self.held(protocol).iter() {
            let head = barred.held.entry(protocol.key(id)).or_insert(id);
            *head = id.min(*head);
        }
        let below = 2 * protocol.claim_messages;
        let messages = protocol.claim_messages;
        let divides = protocol.workers && protocol.flaw != Some(Flaw::DividedById);
        let of_claim = if divides { 1 } else { messages };
        let limits = Limits { messages, of_claim, bytes: u64::MAX, below, of_key: protocol.of_key };
        let mut selection = window::select(&seen, &barred, &limits);
        let start = relay.start;
        let floor = self.floor(protocol, db);
        let leaves_out = self.without != 0 && protocol.flaw != Some(Flaw::LeftOutForgotten);
        relay.start = selection.end(&seen, &barred, floor, leaves_out.then_some(start));
        if start.is_passed(self.low) && protocol.flaw != Some(Flaw::PutBackUnseen) {
            return Claimer::Looking(begin(protocol, db, relay, self.without));
        }
        let of_claim = if protocol.workers { 1 } else { messages };
        let claims = selection.claims.iter().flat_map(|rows| rows.chunks(of_claim));
        let claims = claims.map(|rows| rows.iter().map(|row| row.id).collect()).collect();
        let new = NewClaim {
            version: self.version,
            low: selection.low.unwrap_or(0),
            owner: relay.owner,
            token: 0,
            claims,
            behind: selection.behind.iter().map(|row| row.id).collect(),
        };
        Claimer::claiming(new)
    }

    /// The floor that the next look may start from.
    fn floor(&self, protocol: &Protocol, db: &Database) -> u64 {
        if protocol.flaw == Some(Flaw::FloorAfterLook) { db.floor() } else { self.floor }
    }

    fn bar(&self, protocol: &Protocol, relay: &mut Relay, seen: &Seen, own: &[Arc<Tenure>]) -> Barred {
        let mut foreign = foreign(protocol, relay);
        let mut barred = foreign.bar(seen, own);
        relay.known = foreign.known;
        relay.gone = if protocol.flaw == Some(Flaw::StandingClaimsUnseen) { foreign.known } else { foreign.gone };
        let mut claims: Vec<Claim> = relay.foreign.iter().chain(&self.claims).cloned().collect();
        claims.retain(|claim| foreign.claims.contains_key(&lease(claim.id)));
        relay.foreign = claims;
        if protocol.workers && protocol.flaw != Some(Flaw::KeysOfOwn) {
            barred.keys.extend(own.iter().flat_map(|tenure| &tenure.keys));
        }
        match protocol.flaw {
            Some(Flaw::KeysOfOthers) => barred.keys.clear(),
            Some(Flaw::ClaimedIds) => barred.ids.clear(),
            Some(Flaw::VanishedIdsForgotten) => {
                let stand: Vec<_> = own.iter().filter(|t| seen.leases.contains(&t.lease)).cloned().collect();
                barred.ids = outbox_relay::pipeline::claim::claimed_ids(&stand, &foreign.claims).into_iter().collect();
            }
            Some(Flaw::VanishedKeysForgotten) => {
                barred.keys = foreign.claims.values().flat_map(|claim| &claim.key_hashes).copied().collect();
            }
            _ => {}
        }
        barred
    }

    fn seen(&self, protocol: &Protocol) -> Seen {
        let rows = |ids: Ids| ids.iter().map(|id| pending(protocol, id)).collect();
        Seen {
            has_tail: false,
            version: Some(self.version),
            low: self.low,
            leases: self.claim_ids.iter().copied().map(lease).collect(),
            claims: self.claims.iter().map(|claim| foreign_claim(protocol, claim)).collect(),
            passed: Vec::new(),
            fresh: rows(self.fresh),
            below: rows(self.below),
            holds: self.waiting.first().map(|id| protocol.key(id)),
        }
    }

    /// Messages that hold back their keys.
    fn held(&self, protocol: &Protocol) -> Ids {
        if protocol.flaw == Some(Flaw::RetryHoldsNothing) { Ids::default() } else { self.waiting }
    }
}

fn pending(protocol: &Protocol, id: u64) -> Pending {
    Pending { id, key_hash: protocol.key(id), bytes: 1, attempts: 0, takeovers: 0 }
}

fn foreign_claim(protocol: &Protocol, claim: &Claim) -> ForeignClaim {
    ForeignClaim {
        lease: lease(claim.id),
        owner: claim.owner.to_string(),
        message_ids: claim.messages.iter().collect(),
        key_hashes: protocol.keys_of(claim.messages),
    }
}

fn foreign(protocol: &Protocol, relay: &Relay) -> Foreign {
    let claims = relay.foreign.iter().map(|claim| (lease(claim.id), foreign_claim(protocol, claim)));
    let mut foreign = Foreign::default();
    foreign.claims = claims.collect();
    (foreign.known, foreign.gone) = (relay.known, relay.gone);
    foreign
}

/// The model never reuses a number.
pub(crate) fn lease(claim_id: u64) -> ClaimLease {
    ClaimLease { claim_id, lease_token: claim_id }
}

/// The relay's own record of a claim. Its clock plays no part here.
fn tenure(protocol: &Protocol, own: &Own) -> Arc<Tenure> {
    let until = Instant::now() + Duration::from_secs(1);
    let tenure = Tenure::new(lease(own.claim), 0, own.messages.iter().collect(), protocol.keys_of(own.messages), until);
    tenure.settle(own.may_return);
    Arc::new(tenure)
}
