//! The claimer of a lane: looks for unsent messages and claims them, one claim after the other.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use outbox_core::{
    sqlx,
    store::{
        claim::{self, ForeignClaim, Look, NewClaim, Pending, Seen},
        lease::Lease,
    },
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::{
    context::Context,
    crash,
    leases::Tenure,
    session::Session,
    window::{self, Barred, Limits, Selection, Start},
};

/// Rows that this process has claimed, on their way to be read.
pub struct Claimed {
    /// The claim.
    pub tenure: Arc<Tenure>,
    /// In which pass of its lane's claimer it was made.
    pub pass: u64,
    /// The number of the pass that began last.
    pub last_pass: Arc<AtomicU64>,
    /// The rows, by id.
    pub rows: Vec<Pending>,
    /// Its share of the messages in flight, until it is settled.
    pub count: OwnedSemaphorePermit,
    /// Its share of the bytes in flight, in KiB, until it is published.
    pub bytes: OwnedSemaphorePermit,
}

/// What may be in flight.
#[derive(Clone)]
pub struct Capacity {
    /// Messages.
    pub count: Arc<Semaphore>,
    /// Bytes, in KiB.
    pub kib: Arc<Semaphore>,
}

/// How a pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// So many messages were claimed.
    Claimed(usize),
    /// There was nothing to claim.
    Empty,
    /// Rows behind a waiting one were moved out of the way.
    Deferred,
    /// Another relay was faster.
    Conflict,
}

/// The claimer of one lane.
pub struct Claimer {
    /// What all parts share.
    pub context: Arc<Context>,
    /// The lane.
    pub lane: u16,
    /// What may be in flight.
    pub capacity: Capacity,
    /// Whether there is a sink to publish to.
    pub open: watch::Receiver<bool>,
    /// Where claims go.
    pub claims: mpsc::Sender<Claimed>,
    /// The number of the pass that began last.
    pub last_pass: Arc<AtomicU64>,
}

/// What the claimer remembers between passes.
struct Memory {
    session: Session,
    foreign: Foreign,
    start: Start,
    full_look_at: Instant,
    last_message_at: Instant,
}

/// What the claimer knows of other relays.
#[derive(Debug, Default)]
pub struct Foreign {
    /// Their claims, as far as they were live at the last look.
    pub claims: BTreeMap<u64, ForeignClaim>,
    /// The newest claim that was read: only newer ones are read whole.
    pub known: u64,
    /// Other relays that work on the lane, and when a new claim of theirs was last seen.
    peers: BTreeMap<String, Instant>,
}

/// A full look finds what committed later than the floor allows.
const FULL_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Shortest pause after a look that found nothing, and between small claims: more claims than this cost the server more
/// commits than they save time. Relays that share a lane share the pace.
const PACE: Duration = Duration::from_millis(3);
/// After so long without a message a lane is idle.
const IDLE: Duration = Duration::from_secs(1);
/// A relay that has claimed nothing for so long is no longer counted.
const PEER_AGE: Duration = Duration::from_secs(5);

impl Claimer {
    /// Claims until the relay is stopped.
    pub async fn run(mut self) {
        let now = Instant::now();
        let mut memory = Memory {
            session: Session::new(&self.context),
            foreign: Foreign::default(),
            start: Start::default(),
            full_look_at: now,
            last_message_at: now,
        };
        let stop = self.context.stop.clone();
        while let Some(true) = stop.run_until_cancelled(self.ready()).await {
            let Some(Some((count, bytes))) = stop.run_until_cancelled(self.reserve()).await else { break };
            let started = Instant::now();
            let outcome = self.pass(&mut memory, count, bytes).await;
            self.count(&outcome, started);
            let Some(()) = stop.run_until_cancelled(self.pace(&mut memory, &outcome)).await else { break };
        }
    }

    /// Waits until there is a sink to publish to.
    async fn ready(&mut self) -> bool {
        self.open.wait_for(|open| *open).await.is_ok()
    }

    /// Reserves room for a whole claim; what the claim does not need is given back.
    async fn reserve(&self) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        let relay = &self.context.config.relay;
        let messages = u32::try_from(relay.claim_messages).unwrap_or(u32::MAX);
        let kib = u32::try_from(relay.claim_bytes / 1024).unwrap_or(u32::MAX).max(1);
        let count = Arc::clone(&self.capacity.count).acquire_many_owned(messages).await.ok()?;
        let bytes = Arc::clone(&self.capacity.kib).acquire_many_owned(kib).await.ok()?;
        Some((count, bytes))
    }

    /// One pass: look, choose, claim.
    async fn pass(
        &self,
        memory: &mut Memory,
        count: OwnedSemaphorePermit,
        bytes: OwnedSemaphorePermit,
    ) -> Result<Pass, sqlx::Error> {
        let pass = self.last_pass.fetch_add(1, Ordering::AcqRel) + 1;
        let (seen, selection, start) = self.look(memory).await?;
        let Some(version) = seen.version else { return Ok(Pass::Empty) };
        if !selection.defer.is_empty() {
            return self.defer(memory, version, &selection.defer).await;
        }
        if selection.take.is_empty() {
            return Ok(Pass::Empty);
        }
        let Some(tenure) = self.claim(memory, version, &selection).await? else { return Ok(Pass::Conflict) };
        self.count_late(&selection, start.id());
        self.context.leases.insert(&tenure);
        crash::point("after_claim");
        let taken = selection.take.len();
        let (count, bytes) = (trim(count, taken), trim(bytes, kib(&selection.take)));
        let last_pass = Arc::clone(&self.last_pass);
        let claimed = Claimed { tenure, pass, last_pass, count, bytes, rows: selection.take };
        // A closed channel: the process is ending, and the lease will expire or be released.
        self.claims.send(claimed).await.ok();
        Ok(Pass::Claimed(taken))
    }

    /// Looks at the lane and chooses, and says from where on it looked; again, if a row was put back below where it looked.
    async fn look(&self, memory: &mut Memory) -> Result<(Seen, Selection, Start), sqlx::Error> {
        loop {
            let start = memory.start;
            let (seen, selection) = self.look_once(memory).await?;
            if !start.is_passed(seen.low) {
                return Ok((seen, selection, start));
            }
        }
    }

    async fn look_once(&self, memory: &mut Memory) -> Result<(Seen, Selection), sqlx::Error> {
        let own = self.context.leases.of_lane(self.lane);
        let full = memory.full_look_at <= Instant::now();
        if full {
            memory.full_look_at = Instant::now() + FULL_LOOK_EVERY;
        }
        let (floor, start) = (self.context.floor.load(Ordering::Acquire), memory.start.id());
        let gaps = window::gaps(if full { 0 } else { start }, &claimed_ids(&own, &memory.foreign.claims));
        let messages = self.context.config.relay.claim_messages;
        let limit = u32::try_from(messages).unwrap_or(u32::MAX);
        let below_limit = 2 * messages + gaps.claimed_within;
        let look = Look {
            lane: self.lane,
            owner: &self.context.owner,
            known_claim: memory.foreign.known,
            above: gaps.above,
            limit,
            below: &gaps.below,
            below_limit: u32::try_from(below_limit).unwrap_or(u32::MAX),
        };
        let mut seen = memory.session.run("look", async |db| claim::look(db, &look).await).await?;
        let mut barred = memory.foreign.bar(&seen, &own);
        self.context.leases.sweep(self.lane, &seen.claim_ids);
        if seen.held_cut {
            seen.held = self.held(memory, &seen).await?;
        }
        for (key, id) in &seen.held {
            barred.held.entry(*key).and_modify(|head| *head = (*head).min(*id)).or_insert(*id);
        }
        let bytes = self.context.config.relay.claim_bytes as u64;
        let mut selection = window::select(&seen, &barred, &Limits { messages, bytes, below: below_limit });
        let claimed = barred.ids.iter().copied().min();
        selection.low = selection.low.into_iter().chain(claimed).min();
        memory.start = Start::after(floor, seen.low, selection.low);
        Ok((seen, selection))
    }

    async fn held(&self, memory: &mut Memory, seen: &Seen) -> Result<Vec<(u64, u64)>, sqlx::Error> {
        let rows = seen.below.iter().chain(&seen.fresh);
        let keys: HashSet<u64> = rows.map(|row| row.key_hash).filter(|key| *key != 0).collect();
        let keys: Vec<u64> = keys.into_iter().collect();
        memory.session.run("look", async |db| claim::held_among(db, self.lane, &keys).await).await
    }

    /// Rows below the start were committed later than the floor allows.
    fn count_late(&self, selection: &Selection, start: u64) {
        let late = selection.take.iter().take_while(|row| row.id < start).count();
        self.context.metrics.late_commits_total.inc_by(late as u64);
    }

    async fn defer(&self, memory: &mut Memory, version: u64, ids: &[u64]) -> Result<Pass, sqlx::Error> {
        let head = (self.lane, version, token());
        let won = memory.session.run("defer", async |db| claim::defer(db, head, ids).await).await?;
        Ok(if won { Pass::Deferred } else { Pass::Conflict })
    }

    async fn claim(
        &self,
        memory: &mut Memory,
        version: u64,
        selection: &Selection,
    ) -> Result<Option<Arc<Tenure>>, sqlx::Error> {
        let ids: Vec<u64> = selection.take.iter().map(|row| row.id).collect();
        let mut keys: Vec<u64> = selection.take.iter().map(|row| row.key_hash).filter(|key| *key != 0).collect();
        keys.sort_unstable();
        keys.dedup();
        let new = NewClaim {
            lane: self.lane,
            version,
            low: selection.low.unwrap_or(0),
            owner: &self.context.owner,
            lease_token: token(),
            lease: self.context.config.relay.lease,
            message_ids: &ids,
            key_hashes: &keys,
        };
        // The lease runs on the server from some time after this one.
        let until = Instant::now() + new.lease;
        let claim_id = match memory.session.run("claim", async |db| claim::claim(db, &new).await).await {
            Ok(claim_id) => claim_id,
            Err(error) => self.find(memory, new.lease_token, until).await.ok_or(error)?,
        };
        let tenure = |claim_id| {
            let lease = Lease { claim_id, lease_token: new.lease_token };
            Arc::new(Tenure::new(lease, self.lane, ids.clone(), keys.clone(), until))
        };
        Ok(claim_id.map(tenure))
    }

    /// After an error the claim stands or it does not: asks until the database says so, or the lease has passed.
    async fn find(&self, memory: &mut Memory, token: u64, until: Instant) -> Option<Option<u64>> {
        while Instant::now() < until {
            memory.session.pause().await;
            let found = memory
                .session
                .run("find", async |db| claim::find(db, self.lane, &self.context.owner, token).await)
                .await;
            if let Ok(found) = found {
                return Some(found);
            }
        }
        None
    }

    fn count(&self, outcome: &Result<Pass, sqlx::Error>, started: Instant) {
        let metrics = &self.context.metrics;
        let result = match outcome {
            Ok(Pass::Claimed(messages)) => {
                metrics.claimed_messages_total.inc_by(*messages as u64);
                metrics.claim_duration_seconds.observe(started.elapsed().as_secs_f64());
                "claimed"
            }
            Ok(Pass::Empty | Pass::Deferred) => "empty",
            Ok(Pass::Conflict) => "conflict",
            Err(_) => "error",
        };
        metrics.claims_total.with_label_values(&[result]).inc();
        if outcome.is_ok() {
            self.context.alive("claim");
        }
    }

    /// Waits before the next pass: not at all while claims are full, and longer the longer nothing has come.
    async fn pace(&self, memory: &mut Memory, outcome: &Result<Pass, sqlx::Error>) {
        let relay = &self.context.config.relay;
        let pace = PACE * memory.foreign.relays();
        match outcome {
            Ok(Pass::Claimed(messages)) => {
                memory.last_message_at = Instant::now();
                if *messages < relay.claim_messages / 8 {
                    tokio::time::sleep(pace).await;
                }
            }
            Ok(Pass::Deferred) => {}
            // Claimers that race without a pause lose half of their compare-and-sets.
            Ok(Pass::Conflict) => tokio::time::sleep(pace.mul_f64(rand::random())).await,
            Ok(Pass::Empty) => {
                let quiet = memory.last_message_at.elapsed();
                let pause = (quiet / 16).max(pace).min(relay.poll_interval);
                while !self.nudged(pause).await && quiet > IDLE && self.still_nothing(memory).await {}
            }
            Err(_) => memory.session.pause().await,
        }
    }

    /// Waits; returns whether it was cut short.
    async fn nudged(&self, pause: Duration) -> bool {
        tokio::time::timeout(pause, self.context.nudge.notified()).await.is_ok()
    }

    /// A cheaper question than a look, where nothing comes for long. Full looks go on, so that it need not see everything.
    async fn still_nothing(&self, memory: &mut Memory) -> bool {
        let start = memory.start.id();
        let empty = async |db: &mut _| claim::is_empty(db, self.lane, start).await;
        memory.full_look_at > Instant::now() && memory.session.run("peek", empty).await.unwrap_or(false)
    }
}

impl Foreign {
    /// How many relays work on the lane.
    fn relays(&mut self) -> u32 {
        self.peers.retain(|_, seen| seen.elapsed() < PEER_AGE);
        u32::try_from(self.peers.len()).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// What must not be claimed, by what was seen and by what was known before.
    pub fn bar(&mut self, seen: &Seen, own: &[Arc<Tenure>]) -> Barred {
        let live: HashSet<u64> = seen.claim_ids.iter().copied().collect();
        let mut barred = Barred::default();
        for tenure in own {
            if live.contains(&tenure.lease.claim_id) {
                barred.ids.extend(&tenure.ids);
                if tenure.is_abandoned() {
                    barred.keys.extend(&tenure.keys);
                }
            } else if tenure.may_return() {
                barred.keys.extend(&tenure.keys);
            }
        }
        // What was known first: a claim that is gone leaves its keys behind for this pass.
        for claim in self.claims.values() {
            barred.keys.extend(&claim.key_hashes);
        }
        self.claims.retain(|claim_id, _| live.contains(claim_id));
        for claim in &seen.claims {
            self.known = self.known.max(claim.claim_id);
            self.peers.insert(claim.owner.clone(), Instant::now());
            barred.keys.extend(&claim.key_hashes);
            self.claims.insert(claim.claim_id, claim.clone());
        }
        barred.ids.extend(self.claims.values().flat_map(|claim| &claim.message_ids));
        barred
    }
}

/// The ids that are known to be claimed, sorted.
#[must_use]
pub fn claimed_ids(own: &[Arc<Tenure>], foreign: &BTreeMap<u64, ForeignClaim>) -> Vec<u64> {
    let own = own.iter().flat_map(|tenure| &tenure.ids);
    let mut ids: Vec<u64> = own.chain(foreign.values().flat_map(|claim| &claim.message_ids)).copied().collect();
    ids.sort_unstable();
    ids
}

fn kib(rows: &[Pending]) -> usize {
    let bytes: u64 = rows.iter().map(|row| u64::from(row.bytes)).sum();
    usize::try_from(bytes.div_ceil(1024)).unwrap_or(usize::MAX).max(1)
}

/// Gives back what was reserved beyond `needed`.
fn trim(mut permit: OwnedSemaphorePermit, needed: usize) -> OwnedSemaphorePermit {
    let surplus = permit.num_permits().saturating_sub(needed);
    drop(permit.split(surplus));
    permit
}

/// A fence that nobody else has; 0 means none.
fn token() -> u64 {
    rand::random::<u64>().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(claim_id: u64) -> Arc<Tenure> {
        let lease = Lease { claim_id, lease_token: 1 };
        Arc::new(Tenure::new(lease, 0, vec![claim_id * 10], vec![claim_id], Instant::now()))
    }

    fn sorted(set: HashSet<u64>) -> Vec<u64> {
        let mut sorted = Vec::from_iter(set);
        sorted.sort_unstable();
        sorted
    }

    fn claim(claim_id: u64) -> ForeignClaim {
        ForeignClaim { claim_id, owner: "other".into(), message_ids: vec![claim_id * 10], key_hashes: vec![claim_id] }
    }

    fn barred(foreign: &mut Foreign, claim_ids: &[u64], claims: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let claims = claims.iter().copied().map(claim).collect();
        let seen = Seen { claim_ids: claim_ids.to_vec(), claims, ..Seen::default() };
        let barred = foreign.bar(&seen, &[]);
        (sorted(barred.ids), sorted(barred.keys))
    }

    #[test]
    fn ones_own_claims_bar_their_messages_and_their_keys_only_where_rows_come_back() {
        let (stands, vanished, settled, abandoned) = (own(1), own(2), own(3), own(4));
        settled.leave(false);
        abandoned.leave(false);
        abandoned.abandon();
        let seen = Seen { claim_ids: vec![1, 4], ..Seen::default() };
        let barred = Foreign::default().bar(&seen, &[stands, vanished, settled, Arc::clone(&abandoned)]);
        assert_eq!((sorted(barred.ids), sorted(barred.keys)), (vec![10, 40], vec![2, 4]));
        let barred = Foreign::default().bar(&Seen::default(), &[abandoned]);
        assert_eq!((sorted(barred.ids), sorted(barred.keys)), (vec![], vec![4]));
    }

    #[test]
    fn a_claim_is_read_once_and_known_until_it_is_gone() {
        let mut foreign = Foreign::default();
        assert_eq!(barred(&mut foreign, &[1], &[1]), (vec![10], vec![1]));
        assert_eq!(barred(&mut foreign, &[1], &[]), (vec![10], vec![1]));
    }

    #[test]
    fn the_keys_of_a_claim_that_is_gone_are_left_out_for_one_pass() {
        let mut foreign = Foreign::default();
        barred(&mut foreign, &[1], &[1]);
        assert_eq!(barred(&mut foreign, &[], &[]), (vec![], vec![1]));
        assert_eq!(barred(&mut foreign, &[], &[]), (vec![], vec![]));
    }
}
